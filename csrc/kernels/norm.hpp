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
    // Copies, which the stores below cannot change.
    const std::size_t width = spec.width;
    const float *weight = spec.weight, *bias = spec.bias;
    const float count = static_cast<float>(width);
    const V offset = V::set(spec.offset);
    V sums = V::zero(), squares = V::zero();
    const auto meet = [&](V a) {
        sums = sums + a;
        squares = fma(a, a, squares);
    };
    if (residual != nullptr) {
        each_vector(width, [&](auto load, auto store) {
            const V a = load(x) + load(residual);
            store(a, total);
            meet(a);
        });
        x = total;
    } else {
        each_vector(width, [&](auto load, auto) { meet(load(x)); });
    }
    const float mean = spec.centred ? sum(sums) / count : 0.0f;
    const float square = (spec.centred ? squares_about(x, width, mean) : sum(squares)) / count;
    const V factor = V::set(1.0f / std::sqrt(square + spec.eps));
    const V middle = V::set(mean);
    const auto scaled = [&](auto load) {
        return (load(x) - middle) * factor * (load(weight) + offset);
    };
    if (bias != nullptr) {
        each_vector(width, [&](auto load, auto store) { store(scaled(load) + load(bias), out); });
    } else {
        each_vector(width, [&](auto load, auto store) { store(scaled(load), out); });
    }
}

}  // namespace octavo::OCTAVO_ISA
