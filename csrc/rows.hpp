// What the row-wise kernels are told, as plain data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// A norm of rows of `width`. `bias` may be null; `offset` is added to every weight.
struct Norm {
    const float* weight;
    const float* bias;
    std::size_t width;
    float eps;
    float offset;
    bool centred;  // layer norm: the mean is taken off first
};

// How a token's scores become experts and weights: the `top_k` of `count` with the largest softmax,
// divided by their sum if `normalize`, times `scale`. `shared`: one more, which every token takes,
// weighs the sigmoid of the score after those.
struct Routing {
    std::size_t count, top_k;
    bool normalize;
    float scale;
    bool shared;

    std::size_t logits() const { return count + (shared ? 1 : 0); }
    std::size_t taken() const { return top_k + (shared ? 1 : 0); }
};
constexpr std::size_t MOST_EXPERTS = 1024;

enum class Activation { silu, gelu, gelu_tanh, relu };

// Vectors in a chunk of the kernel `peaks`.
constexpr std::size_t PEAK_VECTORS = 64;

// What a token's noise depends on besides its id.
struct RaceKey {
    std::uint64_t seed;
    std::uint64_t choice;
    std::uint64_t position;
};

}  // namespace octavo
