// Products of rows with packed codes, and the lookup of their rows, on the threads of a pool.
//
// Owns: how a product is cut into pieces, and the rounded activations while it lasts.
// Does not know: Python, how one block is multiplied (kernels/linear_codes.hpp). It checks nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "code_matrix.hpp"
#include "pool.hpp"

namespace octavo {

// x (rows, inputs) times the parts' outputs one after the other, plus `bias` (or null), to rows of
// `out` that lie `stride` apart. Parts have equal inputs.
void multiply_codes(const float* x, std::size_t rows, const std::vector<const CodeMatrix*>& parts,
                    const float* bias, float* out, std::size_t stride, Pool& pool);

// The weights of the outputs `ids`, to `out` (count, inputs).
void embed_codes(const CodeMatrix& matrix, const std::int64_t* ids, std::size_t count, float* out, Pool& pool);

}  // namespace octavo
