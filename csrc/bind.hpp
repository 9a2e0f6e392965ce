// What the binding files share: array types, new arrays, checks that raise ValueError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "pool.hpp"

namespace octavo {

namespace nb = nanobind;

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewMatrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// A new float32 array of (rows, columns), its values not set.
inline NewMatrix new_matrix(std::size_t rows, std::size_t columns) {
    float* data = new float[rows * columns];
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return NewMatrix(data, {rows, columns}, owner);
}

// Raises ValueError, in Python's words, unless `good`.
inline void require(bool good, const std::string& message) {
    if (!good) throw std::invalid_argument(message);
}

inline std::string text(std::size_t n) { return std::to_string(n); }

inline void require_ids(const Ids& ids, std::size_t rows) {
    for (std::size_t i = 0; i < ids.shape(0); ++i)
        require(ids.data()[i] >= 0 && static_cast<std::size_t>(ids.data()[i]) < rows,
                "id " + std::to_string(ids.data()[i]) + " is outside a table of " + text(rows) + " rows");
}

void bind_codes(nb::module_& module);
void bind_ceiling(nb::module_& module);
void bind_norm(nb::module_& module);
void bind_linear(nb::module_& module);
void bind_sample(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_program(nb::module_& module);

}  // namespace octavo
