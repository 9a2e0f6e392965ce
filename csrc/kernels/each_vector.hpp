// A walk over a row of any width.
#pragma once

#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

// Calls f(load, store) for each vector of `width` values; the last one may be partial, its loads
// read as 0 beyond the end.
template <class F>
inline void each_vector(std::size_t width, F f) {
    std::size_t i = 0;
    for (; i + V::N <= width; i += V::N)
        f([&](const float* p) { return V::load(p + i); }, [&](V a, float* p) { a.store(p + i); });
    if (i < width) {
        const std::size_t rest = width - i;
        f([&](const float* p) { return V::load_first(p + i, rest); },
          [&](V a, float* p) { a.store_first(p + i, rest); });
    }
}

}  // namespace octavo::OCTAVO_ISA
