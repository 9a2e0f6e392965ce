// The paged KV cache: one pool of blocks for each KV group.
//
// Owns: the memory, where a layer's block lies, copying blocks, also out of and into it.
// Does not know: which blocks are in use, Python, how a tile is read or written (kernels/).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "kv_types.hpp"
#include "pool.hpp"

namespace octavo {

TileShape tile_shape(KvType type, std::size_t head_dim);

struct CopyPair {
    std::size_t group, source, target;
};

class KvCache {
public:
    // `layers` and `blocks` have one entry for each group. Throws std::invalid_argument for sizes
    // that the kernels cannot hold, std::bad_alloc for lack of memory.
    KvCache(KvType type, std::size_t block_tokens, std::size_t kv_heads, std::size_t head_dim,
            const std::vector<std::size_t>& layers, const std::vector<std::size_t>& blocks);
    KvCache(const KvCache&) = delete;
    KvCache& operator=(const KvCache&) = delete;

    const TileShape& shape() const { return shape_; }
    std::size_t block_tokens() const { return block_tokens_; }
    std::size_t kv_heads() const { return kv_heads_; }
    std::size_t groups() const { return groups_.size(); }
    std::size_t layers(std::size_t group) const { return groups_[group].layers; }
    std::size_t blocks(std::size_t group) const { return groups_[group].blocks; }
    std::size_t block_bytes(std::size_t group) const { return groups_[group].layers * layer_bytes(); }

    KvView view(std::size_t group, std::size_t layer, std::size_t kv_head, const std::int32_t* table);

    // All sources are read before any target is written. Throws std::invalid_argument for a group
    // or block that does not exist.
    void copy(const std::vector<CopyPair>& pairs, Pool& pool);

    // The bytes of one block, all its layers, in the layout of this cache: from and to outside of it
    // (`block_bytes`). Throw std::invalid_argument for a group or block that does not exist.
    void read(std::size_t group, std::size_t index, std::uint8_t* to);
    void write(std::size_t group, std::size_t index, const std::uint8_t* from);

private:
    struct Group {
        std::size_t layers, blocks;
        Buffer memory;
    };

    std::size_t head_bytes() const { return block_tokens_ / TILE_KEYS * shape_.bytes; }
    std::size_t layer_bytes() const { return kv_heads_ * head_bytes(); }
    void require_block(std::size_t group, std::size_t index) const;
    std::uint8_t* block(std::size_t group, std::size_t index) {
        return groups_[group].memory.as<std::uint8_t>() + index * block_bytes(group);
    }

    TileShape shape_;
    std::size_t block_tokens_;
    std::size_t kv_heads_;
    std::vector<Group> groups_;
};

}  // namespace octavo
