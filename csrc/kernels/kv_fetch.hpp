// The tiles of keys and values that a step of attention takes, asked for while the one before it is
// computed: they lie wherever the block table says, and the processor cannot guess it.
//
// Owns: how many keys a step has, which bytes are asked for next.
// Does not know: what is computed meanwhile.
#pragma once

#include "kv_tile.hpp"

namespace octavo::OCTAVO_ISA {

constexpr std::size_t STEP_KEYS = 64;
constexpr std::size_t STEP_TILES = STEP_KEYS / TILE_KEYS;

class Fetch {
public:
    void aim(const AttentionPiece& piece, std::size_t at) {
        const std::size_t last = piece.position + piece.tokens - 1;
        for (std::size_t i = 0; i < STEP_TILES; ++i) {
            const std::size_t position = at + i * TILE_KEYS;
            tiles_[i] = tile_at(piece.view, position < last ? position : last);
        }
        bytes_ = 2 * sizeof(std::uint32_t) * piece.view.shape.words;
        tile_ = offset_ = 0;
    }

    const std::uint8_t* tile(std::size_t i) const { return tiles_[i]; }

    // Where the next `bytes` are; at the end the last tile again, which does no harm.
    const std::uint8_t* take(std::size_t bytes) {
        const std::uint8_t* from = tiles_[tile_] + offset_;
        offset_ += bytes;
        if (offset_ >= bytes_) {
            offset_ = 0;
            if (tile_ + 1 < STEP_TILES) ++tile_;
        }
        return from;
    }

private:
    const std::uint8_t* tiles_[STEP_TILES];
    std::size_t bytes_ = 0;
    std::size_t tile_ = 0;
    std::size_t offset_ = 0;
};

}  // namespace octavo::OCTAVO_ISA
