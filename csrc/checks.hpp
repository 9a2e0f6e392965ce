// Checks of what comes from Python, and the words for what is wrong.
//
// Owns: `require`, and checks that several callers make. All throw std::invalid_argument, which
// Python sees as ValueError.
// Does not know: Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kv_batch.hpp"
#include "kv_cache.hpp"

namespace octavo {

inline std::string text(std::size_t n) { return std::to_string(n); }

// `message` is text, or (where a step of the model passes by) a function that makes it when needed.
template <class Message>
void require(bool good, const Message& message) {
    if (good) return;
    if constexpr (std::is_invocable_v<const Message&>)
        throw std::invalid_argument(message());
    else
        throw std::invalid_argument(message);
}

inline void require_ids(const std::int64_t* ids, std::size_t count, std::size_t rows) {
    for (std::size_t i = 0; i < count; ++i)
        require(ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < rows, [&] {
            return "id " + std::to_string(ids[i]) + " is outside a table of " + text(rows) + " rows";
        });
}

inline void require_blocks(const KvCache& cache, const KvBatch& batch) {
    require(batch.block_tokens() == cache.block_tokens(), [&] {
        return "a batch with blocks of " + text(batch.block_tokens()) + " tokens for a cache with " +
               text(cache.block_tokens());
    });
}

// Tables of cosines and sines (positions, half) for all that the batch rotates.
inline void require_rope(std::size_t positions, std::size_t half, const KvCache& cache, const KvBatch& batch) {
    require(batch.tokens() == 0 || positions > batch.last_position(), [&] {
        return "a rope table of " + text(positions) + " positions for position " + text(batch.last_position());
    });
    require(2 * half <= cache.shape().head_dim, [&] {
        return "a rope of " + text(2 * half) + " dimensions for heads of " + text(cache.shape().head_dim);
    });
}

}  // namespace octavo
