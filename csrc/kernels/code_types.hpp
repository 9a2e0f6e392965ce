// How a packed matrix of codes lies in memory, as plain data that kernels and their callers share.
//
// Owns: the layout, and the form of quantised activations.
// Does not know: where codes come from. Nothing here is a function: this file is compiled for every
// instruction set.
//
// Outputs lie in blocks (Kernels::code_block). A block is a run of groups of inputs, read front to
// back; a group's record holds its codes, then the outputs' scales, then their minima:
//   codes of 8 bits: [group / 4][outputs][4]    four inputs of an output in one 32-bit lane
//   codes of 4 bits: [group / 8][outputs][4]    low nibbles inputs 8 i + (0..3), high ones + (4..7)
// Codes are unsigned. A weight is (code - zero) * scale + minimum, or (table[code] - zero) * scale, or
// (code + addend) * scale, where the record has a whole number in place of each minimum.
// A group that is a whole channel has its scales once, after all codes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// What a code may be: it says how many products fit 16 bits where the processor sums in those.
enum CodeKind : int { NIBBLE, NIBBLE_TABLE, BYTE_TO_31, BYTE_TO_63, BYTE };

struct CodeLayout {
    CodeKind kind;
    int group;  // inputs that share a scale: 16, 32, or 0 for all
    bool half;  // scales and minima are float16, otherwise float32
    bool minimum;
    int zero;
    std::uint8_t table[16];
    std::size_t inputs;  // padded to a whole number of groups (of 32 where there are none)
    bool addend;         // with `minimum`
};

// Inputs of a row that share a float scale where a channel of weights has one.
constexpr std::size_t CHANNEL_SPAN = 64;

// Rows of activations as signed codes of 8 bits, in tiles of Kernels::code_tile rows; the last tile
// may have fewer. Where weights come in groups, 32 activations share a float scale and each 16 of them
// a multiplier of it, a whole number from 1 to 127: an activation is scale * multiplier * code.
// Otherwise CHANNEL_SPAN of them share a scale. With `tile` the rows of its tile, row r of it has
//   codes       [inputs / 4][tile][4]   8 bits, or 16 (Kernels::code_wide; in the order 0, 2, 1, 3, and
//                                       multiplied already)
//   multipliers [inputs / 16][tile]     as kernels want them (code_simd.hpp), beside codes of 8 bits
//   scales      [inputs / 32][tile]     or one for each CHANNEL_SPAN of inputs, the last maybe of fewer
//   offsets     [groups][tile]          -zero * sum of the group's multiplied codes; without minima
//   sums        [groups][tile]          scale * that sum; with minima
struct CodeActivations {
    std::uint8_t* codes;
    std::int32_t* multipliers;
    float* scales;
    std::int32_t* offsets;
    float* sums;
};

}  // namespace octavo
