// Rope and the cache write of a whole batch.
//
// Owns: which thread rotates and writes which tokens.
// Does not know: Python, how one head is rotated or stored (kernels/). It checks nothing.
#pragma once

#include <cstddef>

#include "kv_batch.hpp"
#include "kv_cache.hpp"
#include "pool.hpp"

namespace octavo {

struct RopeCall {
    const float* q;  // (tokens, heads * head_dim), rows apart by their strides
    const float* k;
    const float* v;
    std::size_t q_stride, k_stride, v_stride;
    float* out;        // the rotated queries, contiguous; null: nothing is rotated
    const float* cos;  // (positions, half)
    const float* sin;
    std::size_t half;
    bool interleaved;
    std::size_t heads, group, layer;
};

void rope_and_store(const RopeCall& call, KvCache& cache, const KvBatch& batch, Pool& pool);

}  // namespace octavo
