// Row-wise ops on the threads of a pool: norms, activations, sums.
//
// Owns: from which size on another thread pays.
// Does not know: Python, arithmetic (kernels/). It checks nothing: its callers do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.hpp"
#include "rows.hpp"

namespace octavo {

// Norm of each row of x plus `residual` (or null), to `out`; the sum to `total`, unless null. All
// are (rows, spec.width) and contiguous; `total` may be x or the residual.
void norm_rows(const Norm& spec, const float* x, const float* residual, float* total, float* out,
               std::size_t rows, Pool& pool);

// x (rows, width), or (rows, 2 width) if `gated`, the gate first; out (rows, width).
void act_rows(Activation kind, bool gated, const float* x, float* out, std::size_t rows, std::size_t width,
              Pool& pool);

// x + y * factor, and x * factor, of `count` values.
void add_values(const float* x, const float* y, float factor, float* out, std::size_t count, Pool& pool);
void scale_values(const float* x, float factor, float* out, std::size_t count, Pool& pool);

// Values within +-limit: cut off there, or (smooth) limit * tanh(x / limit).
void bound_values(bool smooth, const float* x, float limit, float* out, std::size_t count, Pool& pool);

// The rows `numbers` of x, to `out` (count, width).
void gather_rows(const float* x, const std::uint32_t* numbers, std::size_t count, std::size_t width, float* out,
                 Pool& pool);

// Adds row i of y (count, width), times factors[i], to row numbers[i] of `out`; no number twice.
void add_to_rows(const float* y, const std::uint32_t* numbers, const float* factors, std::size_t count,
                 std::size_t width, float* out, Pool& pool);

}  // namespace octavo
