// How keys and values lie in the pool, and what the attention kernels are called with.
//
// Owns: the layout of a stored tile, plain structures over pointers.
// Does not know: Python, threads, who owns the memory.
//
// Keys and values are stored in tiles of 16 positions. A tile is an array of 32-bit words, each of
// which holds one float, two bf16 or four int8 (`per_word`), so that one load feeds every lane of a
// vector and no sum ever goes across lanes:
//   keys    [dimension / per_word][position][dimension % per_word]     lanes are keys
//   values  [position / per_word][dimension][position % per_word]      lanes are dimensions
//   int8 only: 16 key scales, 16 value scales (float)
// Dimensions are padded with zeros to a multiple of 16. A block is one tile or several; a block of
// the pool is contiguous over all layers and KV heads, [layer][kv head][tile].
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

enum class KvType { f32, bf16, int8 };

constexpr std::size_t TILE_KEYS = 16;
constexpr std::size_t MAX_HEAD_DIM = 512;

// Queries of one KV head that an attention piece computes together.
constexpr std::size_t MAX_PIECE_ROWS = 48;
constexpr std::size_t MAX_PIECE_HEADS = 16;

// Keys of one partial softmax; partial results are merged in order. Borders are at multiples of this
// position, so that neither a batch nor the number of threads can move them.
constexpr std::size_t SPLIT_KEYS = 512;

// Plain data, filled in by `tile_shape` (kv_cache.hpp): a function here would be compiled by every
// instruction set and then shared.
struct TileShape {
    KvType type;
    std::size_t head_dim;
    std::size_t width;  // head_dim, padded
    std::size_t words;  // of a tile's keys, or of its values
    std::size_t bytes;  // of a tile
};

// The keys and values of one layer and KV head, by position, through a sequence's block table.
struct KvView {
    TileShape shape;
    std::uint8_t* base;
    std::size_t block_bytes;
    std::size_t block_tokens;
    const std::int32_t* table;
};

// The rotation of one position: `half` pairs of dimensions; the rest of a head is passed through.
// `interleaved` pairs dimensions (2i, 2i + 1) instead of (i, i + half).
struct Rotation {
    const float* cos;
    const float* sin;
    std::size_t half;
    bool interleaved;
};

// Tokens at consecutive positions of one sequence, and query heads that share a KV head.
// `partial` (or null) takes the raw result of the single split [first_split, first_split + 1) as
// rows of width + 2 floats (mixed values, largest score, sum of weights), token by token and in it
// head by head; otherwise `out` takes the result.
struct AttentionPiece {
    KvView view;
    const float* query;  // the first token's first head
    std::size_t query_stride;
    float* out;
    std::size_t out_stride;
    std::size_t position;
    std::size_t tokens;
    std::size_t heads;
    std::size_t first_split;
    std::size_t end_split;
    float* partial;
    float scale;
    float softcap;         // 0: none
    const float* slopes;   // of the first head on (ALiBi), or null
    const float* sinks;    // of the first head on: scores that take weight and give no value, or null
    std::size_t window;    // 0: unlimited
    // What the same thread computes after this, or null: its first keys are asked for meanwhile.
    const AttentionPiece* next;
};

}  // namespace octavo
