#include "rope.hpp"

#include <algorithm>

#include "kernels.hpp"

namespace octavo {

namespace {

// Tokens that one piece takes.
constexpr std::size_t PIECE = 8;

void one_token(const RopeCall& call, KvCache& cache, const KvBatch& batch, std::size_t token) {
    const std::size_t dims = cache.shape().head_dim;
    const bool rotates = call.out != nullptr;
    const std::size_t at = batch.position(token) * call.half;
    const Rotation rotation{call.cos + at, call.sin + at, call.half, call.interleaved};
    if (rotates)
        kernels().rotate(call.q + token * call.q_stride, call.out + token * call.heads * dims, call.heads, dims,
                         rotation);
    if (!batch.written(token)) return;
    float rotated[MAX_HEAD_DIM];
    for (std::size_t h = 0; h < cache.kv_heads(); ++h) {
        const float* key = call.k + token * call.k_stride + h * dims;
        if (rotates) {
            kernels().rotate(key, rotated, 1, dims, rotation);
            key = rotated;
        }
        const KvView view = cache.view(call.group, call.layer, h, batch.table(call.group, batch.row_of(token)));
        kernels().store_kv(view, batch.position(token), key, call.v + token * call.v_stride + h * dims);
    }
}

}  // namespace

void rope_and_store(const RopeCall& call, KvCache& cache, const KvBatch& batch, Pool& pool) {
    const std::size_t tokens = batch.tokens();
    pool.run((tokens + PIECE - 1) / PIECE, [&](std::size_t piece) {
        const std::size_t end = std::min(tokens, (piece + 1) * PIECE);
        for (std::size_t t = piece * PIECE; t < end; ++t) one_token(call, cache, batch, t);
    });
}

}  // namespace octavo
