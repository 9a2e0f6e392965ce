// Attention of a whole batch: which pieces it is cut into, and in which order threads claim them.
//
// Owns: the pieces, their order, merging of splits that were computed apart.
// Does not know: Python; how a piece is computed (kernels/attention.hpp).
//
// How the batch is cut cannot change a bit of the result: a piece only says which tokens are
// computed side by side and whether a thread takes all of a sequence or one split.
#pragma once

#include <cstddef>

#include "kv_batch.hpp"
#include "kv_cache.hpp"

namespace octavo {

struct AttentionCall {
    const float* query;  // (tokens, heads * head_dim)
    std::size_t query_stride;
    float* out;  // the same shape, contiguous
    std::size_t heads;
    std::size_t group;
    std::size_t layer;
    float scale;
    float softcap;
    std::size_t window;
    const float* slopes;  // one a head, or null
    const float* sinks;
};

// The sizes must have been checked against the cache and the batch.
void attend_batch(const AttentionCall& call, KvCache& cache, const KvBatch& batch, Pool& pool);

}  // namespace octavo
