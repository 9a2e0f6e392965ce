// Normalisation of rows.
#pragma once

#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

// One row: x / sqrt(mean(x^2) + eps) * weight. The order of the sum depends on the width alone.
inline void rms_norm(const float* x, const float* weight, float* out, std::size_t width, float eps) {
    V squares = V::zero();
    std::size_t i = 0;
    for (; i + V::N <= width; i += V::N) {
        const V a = V::load(x + i);
        squares = fma(a, a, squares);
    }
    if (i < width) {
        const V a = V::load_first(x + i, width - i);
        squares = fma(a, a, squares);
    }
    const float mean = sum(squares) / static_cast<float>(width);
    const V factor = V::set(1.0f / std::sqrt(mean + eps));
    for (i = 0; i + V::N <= width; i += V::N)
        (V::load(x + i) * factor * V::load(weight + i)).store(out + i);
    if (i < width) {
        const std::size_t rest = width - i;
        (V::load_first(x + i, rest) * factor * V::load_first(weight + i, rest)).store_first(out + i, rest);
    }
}

}  // namespace octavo::OCTAVO_ISA
