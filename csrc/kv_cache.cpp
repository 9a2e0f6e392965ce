#include "kv_cache.hpp"

#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include "checks.hpp"

namespace octavo {

namespace {

// Sizes above it are mistakes, and products of sizes below it do not overflow.
constexpr std::size_t MOST = 65536;

}  // namespace

TileShape tile_shape(KvType type, std::size_t head_dim) {
    const std::size_t per_word = type == KvType::f32 ? 1 : type == KvType::bf16 ? 2 : 4;
    const std::size_t width = (head_dim + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
    const std::size_t words = width * TILE_KEYS / per_word;
    const std::size_t scales = type == KvType::int8 ? 2 * TILE_KEYS * sizeof(float) : 0;
    return {type, head_dim, width, words, 2 * words * sizeof(std::uint32_t) + scales};
}

KvCache::KvCache(KvType type, std::size_t block_tokens, std::size_t kv_heads, std::size_t head_dim,
                 const std::vector<std::size_t>& layers, const std::vector<std::size_t>& blocks)
    : block_tokens_(block_tokens), kv_heads_(kv_heads) {
    require(block_tokens > 0 && block_tokens % TILE_KEYS == 0,
            "blocks of " + std::to_string(block_tokens) + " tokens: the compiled backend needs a multiple of " +
                std::to_string(TILE_KEYS));
    require(head_dim > 0 && head_dim <= MAX_HEAD_DIM,
            "heads of " + std::to_string(head_dim) + " dimensions: the compiled backend takes 1 to " +
                std::to_string(MAX_HEAD_DIM));
    require(kv_heads > 0 && kv_heads <= MOST && block_tokens <= MOST,
            "a cache with blocks of " + std::to_string(block_tokens) + " tokens and " + std::to_string(kv_heads) +
                " KV heads");
    require(layers.size() == blocks.size(), std::to_string(blocks.size()) + " pools for " +
                                                std::to_string(layers.size()) + " KV groups");
    shape_ = tile_shape(type, head_dim);
    for (std::size_t g = 0; g < layers.size(); ++g) {
        require(blocks[g] <= INT32_MAX && layers[g] <= MOST && blocks[g] * layers[g] <= SIZE_MAX / layer_bytes(),
                "a pool of " + std::to_string(blocks[g]) + " blocks of " + std::to_string(layers[g]) + " layers");
        groups_.push_back({layers[g], blocks[g], Buffer(blocks[g] * layers[g] * layer_bytes())});
    }
}

KvView KvCache::view(std::size_t group, std::size_t layer, std::size_t kv_head, const std::int32_t* table) {
    return {shape_, block(group, 0) + layer * layer_bytes() + kv_head * head_bytes(), block_bytes(group),
            block_tokens_, table};
}

void KvCache::copy(const std::vector<CopyPair>& pairs, Pool& pool) {
    std::set<std::pair<std::size_t, std::size_t>> sources, targets;
    for (const CopyPair& pair : pairs) {
        require(pair.group < groups_.size(), "KV group " + std::to_string(pair.group) + " of " +
                                                 std::to_string(groups_.size()));
        const std::size_t blocks = groups_[pair.group].blocks;
        require(pair.source < blocks && pair.target < blocks,
                "a copy from block " + std::to_string(pair.source) + " to " + std::to_string(pair.target) +
                    " in a pool of " + std::to_string(blocks) + " blocks");
        sources.insert({pair.group, pair.source});
        targets.insert({pair.group, pair.target});
    }
    bool apart = targets.size() == pairs.size();
    for (const auto& target : targets) apart &= sources.count(target) == 0;
    if (apart) {
        pool.run(pairs.size(), [&](std::size_t i) {
            const auto [group, source, target] = pairs[i];
            std::memcpy(block(group, target), block(group, source), block_bytes(group));
        });
        return;
    }
    std::vector<std::vector<std::uint8_t>> read;
    for (const auto& [group, source, target] : pairs) {
        const std::uint8_t* from = block(group, source);
        read.emplace_back(from, from + block_bytes(group));
    }
    for (std::size_t i = 0; i < pairs.size(); ++i)
        std::memcpy(block(pairs[i].group, pairs[i].target), read[i].data(), read[i].size());
}

void KvCache::require_block(std::size_t group, std::size_t index) const {
    require(group < groups_.size(), "KV group " + std::to_string(group) + " of " + std::to_string(groups_.size()));
    require(index < groups_[group].blocks, "block " + std::to_string(index) + " of a pool of " +
                                               std::to_string(groups_[group].blocks) + " blocks");
}

void KvCache::read(std::size_t group, std::size_t index, std::uint8_t* to) {
    require_block(group, index);
    std::memcpy(to, block(group, index), block_bytes(group));
}

void KvCache::write(std::size_t group, std::size_t index, const std::uint8_t* from) {
    require_block(group, index);
    std::memcpy(block(group, index), from, block_bytes(group));
}

}  // namespace octavo
