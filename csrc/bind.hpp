// What the binding files share: array types, new arrays, checks of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "checks.hpp"
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

inline void require_ids(const Ids& ids, std::size_t rows) { require_ids(ids.data(), ids.shape(0), rows); }

void bind_codes(nb::module_& module);
void bind_ceiling(nb::module_& module);
void bind_norm(nb::module_& module);
void bind_experts(nb::module_& module);
void bind_linear(nb::module_& module);
void bind_sample(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_program(nb::module_& module);

}  // namespace octavo
