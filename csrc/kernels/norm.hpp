// Normalisation of rows, fused with the sum of the residual.
#pragma once

#include "../rows.hpp"
#include "each_vector.hpp"
#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

// The sum of (x - mean)^2.
inline float squares_about(const float* x, std::size_t width, float mean) {
    V total = V::zero();
    const V middle = V::set(mean);
    std::size_t i = 0;
    for (; i + V::N <= width; i += V::N) {
        const V a = V::load(x + i) - middle;
        total = fma(a, a, total);
    }
    float rest = 0.0f;
    for (; i < width; ++i) rest += (x[i] - mean) * (x[i] - mean);
    return sum(total) + rest;
}

// One row: `total` receives x + residual where there is a residual; `out` the norm of that sum (of x
// without one). The order of all sums depends on the width alone.
inline void norm(const Norm& spec, const float* x, const float* residual, float* total, float* out) {
    const float width = static_cast<float>(spec.width);
    V sums = V::zero(), squares = V::zero();
    each_vector(spec.width, [&](auto load, auto store) {
        V a = load(x);
        if (residual != nullptr) {
            a = a + load(residual);
            store(a, total);
        }
        sums = sums + a;
        squares = fma(a, a, squares);
    });
    const float* row = residual != nullptr ? total : x;
    const float mean = spec.centred ? sum(sums) / width : 0.0f;
    const float square = (spec.centred ? squares_about(row, spec.width, mean) : sum(squares)) / width;
    const V factor = V::set(1.0f / std::sqrt(square + spec.eps));
    const V middle = V::set(mean), offset = V::set(spec.offset);
    each_vector(spec.width, [&](auto load, auto store) {
        V a = (load(row) - middle) * factor * (load(spec.weight) + offset);
        if (spec.bias != nullptr) a = a + load(spec.bias);
        store(a, out);
    });
}

}  // namespace octavo::OCTAVO_ISA
