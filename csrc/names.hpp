// What ops call their kinds, as the words that Python says.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "rows.hpp"

namespace octavo {

struct NamedActivation {
    Activation kind;
    bool gated;
};

// Throws std::invalid_argument for a name that is not known.
inline NamedActivation activation_named(std::string_view name) {
    constexpr std::string_view suffix = "_gated";
    std::string_view base = name;
    const bool gated = base.ends_with(suffix);
    if (gated) base.remove_suffix(suffix.size());
    if (base == "silu") return {Activation::silu, gated};
    if (base == "gelu") return {Activation::gelu, gated};
    if (base == "gelu_tanh") return {Activation::gelu_tanh, gated};
    if (base == "relu") return {Activation::relu, gated};
    throw std::invalid_argument("unknown activation '" + std::string(base) +
                                "'; known are silu, gelu, gelu_tanh, relu, each also with _gated");
}

inline bool norm_is_centred(std::string_view kind) {
    if (kind != "rms" && kind != "layer")
        throw std::invalid_argument("unknown norm '" + std::string(kind) + "'; known are rms, layer");
    return kind == "layer";
}

}  // namespace octavo
