// Activations, plain and gated, and sums of arrays: one value at a time.
//
// NaN and infinities come out as the formulas have them: a row that is not finite is found at the
// logits, so nothing here may turn it into a plausible number.
#pragma once

#include "../rows.hpp"
#include "compare.hpp"
#include "each_vector.hpp"
#include "simd.hpp"
#include "softmax.hpp"

namespace octavo::OCTAVO_ISA {

// x / (1 + e^-2u), where `u` may be any size: e^-u stays finite, its square overflows as it should.
inline V logistic_of(V x, V u) {
    const V root = exp(V::zero() - u);
    return x / fma(root, root, V::set(1.0f));
}

template <Activation kind>
inline V activated(V x) {
    if constexpr (kind == Activation::silu) return logistic_of(x, x * V::set(0.5f));
    if constexpr (kind == Activation::relu) return max(V::zero(), x);  // in this order NaN stays
    if constexpr (kind == Activation::gelu_tanh) {
        // 1 + tanh(u) = 2 / (1 + e^-2u)
        const V u = V::set(0.797884561f) * (x + V::set(0.044715f) * x * x * x);
        return logistic_of(x, u);
    }
    if constexpr (kind == Activation::gelu) {
        // x/2 erfc(-x / sqrt 2), by the Chebyshev fit of the reference.
        const V z = x * V::set(-0.707106781f);
        const V size = max(z, V::zero() - z);
        const V t = V::set(1.0f) / fma(V::set(0.5f), size, V::set(1.0f));
        constexpr float fitted[] = {-0.82215223f, 1.48851587f,  -1.13520398f,
                                    0.27886807f,  -0.18628806f, 0.09678418f,
                                    0.37409196f,  1.00002368f,  -1.26551223f};
        V fit = V::set(0.17087277f);
        for (float c : fitted) fit = fma(fit, t, V::set(c));
        const V tail = t * exp(fit - size * size);
        return V::set(0.5f) * x * by_sign(z, V::set(2.0f) - tail, tail);
    }
}

template <Activation kind>
inline void act_as(const float* x, const float* up, float* out, std::size_t n) {
    each_vector(n, [&](auto load, auto store) {
        const V a = activated<kind>(load(x));
        store(up != nullptr ? a * load(up) : a, out);
    });
}

// out = f(x), or f(x) * up where `up` is not null.
inline void act(Activation kind, const float* x, const float* up, float* out, std::size_t n) {
    switch (kind) {
        case Activation::silu: return act_as<Activation::silu>(x, up, out, n);
        case Activation::gelu: return act_as<Activation::gelu>(x, up, out, n);
        case Activation::gelu_tanh: return act_as<Activation::gelu_tanh>(x, up, out, n);
        case Activation::relu: return act_as<Activation::relu>(x, up, out, n);
    }
}

// out = x + y * factor, in two roundings.
inline void add_scaled(const float* x, const float* y, float factor, float* out, std::size_t n) {
    const V f = V::set(factor);
    each_vector(n, [&](auto load, auto store) { store(load(x) + load(y) * f, out); });
}

inline void scale(const float* x, float factor, float* out, std::size_t n) {
    const V f = V::set(factor);
    each_vector(n, [&](auto load, auto store) { store(load(x) * f, out); });
}

// Values held within +-limit: cut off there, or (smooth) limit * tanh(x / limit). NaN stays NaN.
inline void bound(bool smooth, const float* x, float limit, float* out, std::size_t n) {
    const V most = V::set(limit), least = V::set(-limit);
    if (smooth)
        each_vector(n, [&](auto load, auto store) { store(most * tanh_of(load(x) / most), out); });
    else
        each_vector(n, [&](auto load, auto store) { store(min(most, max(least, load(x))), out); });
}

}  // namespace octavo::OCTAVO_ISA
