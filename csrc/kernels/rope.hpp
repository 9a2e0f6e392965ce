// Rotary position embedding of one head.
#pragma once

#include "../kv_types.hpp"
#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

// The products are rounded one by one, as numpy does it: the reference gives the same bits.
inline void rotate_head(const float* x, float* out, std::size_t head_dim, const Rotation& rotation) {
    const std::size_t half = rotation.half;
    const float *cos = rotation.cos, *sin = rotation.sin;
    if (rotation.interleaved) {
        for (std::size_t i = 0; i < half; ++i) {
            const float low = x[2 * i], high = x[2 * i + 1];
            out[2 * i] = low * cos[i] - high * sin[i];
            out[2 * i + 1] = high * cos[i] + low * sin[i];
        }
    } else {
        std::size_t i = 0;
        for (; i + V::N <= half; i += V::N) {
            const V low = V::load(x + i), high = V::load(x + half + i);
            const V c = V::load(cos + i), s = V::load(sin + i);
            (low * c - high * s).store(out + i);
            (high * c + low * s).store(out + half + i);
        }
        for (; i < half; ++i) {
            const float low = x[i], high = x[half + i];
            out[i] = low * cos[i] - high * sin[i];
            out[half + i] = high * cos[i] + low * sin[i];
        }
    }
    for (std::size_t d = 2 * half; d < head_dim; ++d) out[d] = x[d];
}

// `heads` heads, one after the other.
inline void rotate(const float* x, float* out, std::size_t heads, std::size_t head_dim,
                   const Rotation& rotation) {
    for (std::size_t h = 0; h < heads; ++h) rotate_head(x + h * head_dim, out + h * head_dim, head_dim, rotation);
}

}  // namespace octavo::OCTAVO_ISA
