// Single rows: activations to codes of 8 bits, and one output's weights back to floats.
#pragma once

#include "code_simd.hpp"
#include "linear_codes.hpp"

namespace octavo::OCTAVO_ISA {

// Below it a group counts as zero: its reciprocal would not be finite.
constexpr float LEAST_MAGNITUDE = 1e-30f;

// Whether four codes of an activation row take 8 bytes instead of 4.
template <CodeKind kind>
constexpr bool wide_inputs() { return Dot<kind>::STEP == 8; }

inline bool code_wide(CodeKind kind) { return kind == BYTE ? wide_inputs<BYTE>() : kind == NIBBLE_TABLE && wide_inputs<NIBBLE_TABLE>(); }

struct Magnitude {
    V largest = V::zero();
    V poison = V::zero();  // NaN from the first value on that is not finite

    void see(V x) {
        largest = max(largest, max(x, V::zero() - x));
        poison = fma(x, V::zero(), poison);
    }
    float value() const { return OCTAVO_ISA::largest(largest); }
    bool finite() const { return sum(poison) == 0.0f; }
};

// Of codes that are largest / 127 apart: the scale, and what to multiply values by. A group that is
// not finite gets the scale NaN, so that its products are NaN and are found at the logits.
inline float code_scale(const Magnitude& seen, float& inverse) {
    inverse = 0.0f;
    if (!seen.finite()) return std::nanf("");
    const float largest = seen.value();
    if (largest < LEAST_MAGNITUDE) return 0.0f;
    inverse = 127.0f / largest;
    return largest / 127.0f;
}

// Row `row` of a tile of `tile` rows: x (inputs values, in a buffer padded with zeros to
// layout.inputs) into the tile's activations. Codes are rounded to nearest, ties to even.
inline void quantize_row(const CodeLayout& layout, const float* x, const CodeActivations& to,
                         std::size_t row, std::size_t tile) {
    const bool wide = code_wide(layout.kind);
    const std::size_t step_bytes = wide ? 8 : 4;
    const std::size_t span = layout.group == 0 ? layout.inputs : 32;
    const std::size_t group = layout.group == 0 ? layout.inputs : static_cast<std::size_t>(layout.group);
    std::int32_t sum = 0;
    for (std::size_t first = 0; first < layout.inputs; first += span) {
        Magnitude seen;
        for (std::size_t i = 0; i < span; i += V::N) seen.see(V::load(x + first + i));
        float inverse;
        const float scale = code_scale(seen, inverse);
        to.scales[first / span * tile + row] = scale;
        for (std::size_t at = first; at < first + span; at += 32) {
            float rounded[32];
            for (std::size_t i = 0; i < 32; i += V::N)
                if (inverse == 0.0f)
                    V::zero().store(rounded + i);
                else
                    round(V::load(x + at + i) * V::set(inverse)).store(rounded + i);
            std::int16_t codes[32];
            for (std::size_t i = 0; i < 32; ++i) codes[i] = static_cast<std::int16_t>(rounded[i]);
            for (std::size_t step = 0; step < 8; ++step) {
                const std::int16_t* c = codes + 4 * step;
                std::uint8_t* target = to.codes + ((at / 4 + step) * tile + row) * step_bytes;
                const std::int16_t pairs[4] = {c[0], c[2], c[1], c[3]};
                const std::int8_t bytes[4] = {static_cast<std::int8_t>(c[0]), static_cast<std::int8_t>(c[1]),
                                              static_cast<std::int8_t>(c[2]), static_cast<std::int8_t>(c[3])};
                if (wide)
                    std::memcpy(target, pairs, sizeof pairs);
                else
                    std::memcpy(target, bytes, sizeof bytes);
            }
            for (std::size_t i = 0; i < 32; i += 16) {
                for (std::size_t k = 0; k < 16; ++k) sum += codes[i + k];
                const std::size_t end = at + i + 16;
                if (end % group != 0) continue;
                const std::size_t slot = (end / group - 1) * tile + row;
                if (layout.minimum)
                    to.sums[slot] = scale * static_cast<float>(sum);
                else
                    to.offsets[slot] = -layout.zero * sum;
                sum = 0;
            }
        }
    }
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
            const float product = static_cast<float>(code - layout.zero) * scale;
            out[first + i] = layout.minimum ? product + least : product;
        }
        block += code_bytes + scale_bytes * (layout.minimum ? 2 : 1);
    }
}

}  // namespace octavo::OCTAVO_ISA
