// Single rows: activations to codes of 8 bits, and one output's weights back to floats.
#pragma once

#include "code_simd.hpp"
#include "linear_codes.hpp"

namespace octavo::OCTAVO_ISA {

// Below it a group counts as zero: its reciprocal would not be finite.
constexpr float LEAST_MAGNITUDE = 1e-30f;

constexpr bool code_wide(CodeKind kind) {
    return kind == BYTE ? Dot<BYTE>::STEP == 8 : kind == NIBBLE_TABLE && Dot<NIBBLE_TABLE>::STEP == 8;
}

// Divisions are slow, and multipliers few.
struct Reciprocals {
    float of[128];
    constexpr Reciprocals() : of{} {
        for (int i = 1; i < 128; ++i) of[i] = 1.0f / static_cast<float>(i);
    }
};
constexpr Reciprocals reciprocals;

inline float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

struct CodeScale {
    float scale;
    float inverse[2];           // what to multiply each half's values by
    std::int32_t multiplier[2];
};

// For 32 values with a scale of their own, or (whole) the first 32 of `n` that share one. The largest
// code is 127. Values that are not finite get the scale NaN and codes 0, so that their products are NaN
// and are found at the logits.
inline CodeScale code_scale(const float* x, std::size_t n, bool whole) {
    const std::size_t half = whole ? n : n / 2;
    const std::uint32_t bits[2] = {largest_bits(x, half), whole ? 0 : largest_bits(x + half, half)};
    const std::uint32_t most = bits[0] > bits[1] ? bits[0] : bits[1];
    const float largest = float_of(most);
    if (most >= 0x7f800000u) return {std::nanf(""), {}, {1, 1}};
    if (largest < LEAST_MAGNITUDE) return {0.0f, {}, {1, 1}};
    const float finest = 127.0f / largest;
    if (whole) return {largest / 127.0f, {finest, finest}, {1, 1}};
    CodeScale result{largest * (1.0f / (127.0f * 127.0f)), {}, {}};
    for (int i = 0; i < 2; ++i) {
        // Rounded up, without branches: which half is the larger one cannot be foretold.
        const float exact = float_of(bits[i]) * finest, wanted = exact < 127.0f ? exact : 127.0f;
        std::int32_t multiplier = static_cast<std::int32_t>(wanted);
        multiplier += static_cast<std::int32_t>(static_cast<float>(multiplier) < wanted);
        multiplier += static_cast<std::int32_t>(multiplier == 0);
        result.multiplier[i] = multiplier;
        result.inverse[i] = 127.0f * finest * reciprocals.of[multiplier];
    }
    return result;
}

// Puts 32 codes at `to`, four after four, `stride` bytes from one four to the next.
template <bool wide>
inline void place_codes(const std::int16_t* codes, std::uint8_t* to, std::size_t stride) {
    std::uint8_t bytes[32];
    if constexpr (!wide) narrow_codes(codes, bytes);
    for (std::size_t step = 0; step < 8; ++step, to += stride) {
        const std::int16_t* c = codes + 4 * step;
        const std::int16_t pairs[4] = {c[0], c[2], c[1], c[3]};
        if constexpr (wide)
            std::memcpy(to, pairs, sizeof pairs);
        else
            std::memcpy(to, bytes + 4 * step, 4);
    }
}

template <bool wide, bool channel>
inline void quantize_row_as(const CodeLayout& layout, const float* x, const CodeActivations& to,
                            std::size_t row, std::size_t tile) {
    constexpr std::size_t step_bytes = wide ? 8 : 4;
    constexpr std::size_t span = channel ? CHANNEL_SPAN : 32;
    const std::size_t group = channel ? CHANNEL_SPAN : static_cast<std::size_t>(layout.group);
    std::int32_t sum = 0;
    CodeScale scale{};
    std::size_t slot = row, group_end = group;
    for (std::size_t at = 0; at < layout.inputs; at += 32) {
        if (at % span == 0) {
            const std::size_t left = layout.inputs - at;
            scale = code_scale(x + at, left < span ? left : span, channel);
            to.scales[at / span * tile + row] = scale.scale;
        }
        std::int16_t codes[32] = {};
        for (std::size_t half = 0; half < 2; ++half) {
            std::int16_t* const sixteen = codes + 16 * half;
            const std::int32_t multiplier = scale.multiplier[half];
            if (scale.inverse[half] != 0.0f)
                sum += multiplier * round_codes(x + at + 16 * half, scale.inverse[half], sixteen);
            if constexpr (wide && !channel)
                for (int i = 0; i < 16; ++i) sixteen[i] = static_cast<std::int16_t>(sixteen[i] * multiplier);
            else if constexpr (!channel)
                to.multipliers[(at / 16 + half) * tile + row] = multiplier_word(multiplier);
            const std::size_t end = at + 16 * half + 16;
            if (end != group_end && end != layout.inputs) continue;
            if (layout.minimum)
                to.sums[slot] = scale.scale * static_cast<float>(sum);
            else
                to.offsets[slot] = -layout.zero * sum;
            sum = 0;
            slot += tile;
            group_end += group;
        }
        place_codes<wide>(codes, to.codes + (at / 4 * tile + row) * step_bytes, tile * step_bytes);
    }
}

// Row `row` of a tile of `tile` rows: x (layout.inputs values) into the tile's activations. Codes are
// rounded to nearest, ties to even.
inline void quantize_row(const CodeLayout& layout, const float* x, const CodeActivations& to,
                         std::size_t row, std::size_t tile) {
    constexpr bool wide = Dot<BYTE>::STEP == 8;
    if (layout.group == 0)
        quantize_row_as<wide, true>(layout, x, to, row, tile);
    else if (code_wide(layout.kind))
        quantize_row_as<wide, false>(layout, x, to, row, tile);
    else
        quantize_row_as<false, false>(layout, x, to, row, tile);
}

// Output `lane` of a block as `inputs` floats: each weight as its format defines it, product and sum
// rounded one after the other.
inline void dequantize_row(const CodeLayout& layout, const std::uint8_t* block, std::size_t lane,
                           std::size_t inputs, float* out) {
    const bool nibble = is_nibble(layout.kind);
    const std::size_t group = layout.group == 0 ? layout.inputs : static_cast<std::size_t>(layout.group);
    const std::size_t code_bytes = group * CODE_BLOCK / (nibble ? 2 : 1);
    const std::size_t width = layout.half ? 2 : 4, scale_bytes = CODE_BLOCK * width;
    const auto number = [&](const std::uint8_t* p) {
        if (!layout.half) {
            float value;
            std::memcpy(&value, p, sizeof value);
            return value;
        }
        std::uint16_t bits;
        std::memcpy(&bits, p, sizeof bits);
        return half_to_float(bits);
    };
    for (std::size_t first = 0; first < inputs; first += group) {
        const std::uint8_t* scales = block + code_bytes + lane * width;
        const float scale = number(scales);
        const float least = layout.minimum ? number(scales + scale_bytes) : 0.0f;
        const std::size_t count = inputs - first < group ? inputs - first : group;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t step = i / 4;
            const std::uint8_t* four = block + ((nibble ? step / 2 : step) * CODE_BLOCK + lane) * 4;
            int code = four[i % 4];
            if (nibble) code = step % 2 ? code >> 4 : code & 15;
            if (layout.kind == NIBBLE_TABLE) code = layout.table[code];
            if (layout.addend) {
                out[first + i] = (static_cast<float>(code) + least) * scale;
                continue;
            }
            const float product = static_cast<float>(code - layout.zero) * scale;
            out[first + i] = layout.minimum ? product + least : product;
        }
        block += code_bytes + scale_bytes * (layout.minimum ? 2 : 1);
    }
}

}  // namespace octavo::OCTAVO_ISA
