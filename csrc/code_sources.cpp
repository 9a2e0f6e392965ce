#include "code_sources.hpp"

#include <cstring>

#define OCTAVO_ISA host
#include "kernels/half.hpp"
#undef OCTAVO_ISA

namespace octavo {

namespace {

using Bytes = const std::uint8_t*;

float half_at(Bytes p) {
    std::uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return host::half_to_float(bits);
}

// Low nibbles are the first 16 codes, high nibbles the last 16.
void split_nibbles(Bytes p, std::uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = p[i] & 15;
        codes[16 + i] = p[i] >> 4;
    }
}

void add_fifth_bits(Bytes p, std::uint8_t* codes) {
    std::uint32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    for (int i = 0; i < 32; ++i) codes[i] |= static_cast<std::uint8_t>((bits >> i & 1u) << 4);
}

// Blocks of 32: a scale, a minimum where there is one, fifth bits where there are, nibbles.
template <bool minimum, bool five>
void read_legacy(Bytes p, std::size_t blocks, CodeRow to) {
    constexpr std::size_t fifth = minimum ? 4 : 2, nibbles = fifth + (five ? 4 : 0);
    for (std::size_t b = 0; b < blocks; ++b, p += nibbles + 16) {
        to.scales[b] = half_at(p);
        if (minimum) to.minima[b] = half_at(p + 2);
        split_nibbles(p + nibbles, to.codes + 32 * b);
        if (five) add_fifth_bits(p + fifth, to.codes + 32 * b);
    }
}

void read_q8_0(Bytes p, std::size_t blocks, CodeRow to) {
    for (std::size_t b = 0; b < blocks; ++b, p += 34) {
        to.scales[b] = half_at(p);
        for (int i = 0; i < 32; ++i) to.codes[32 * b + i] = p[2 + i] ^ 0x80;
    }
}

// Eight groups of 32: scales and minima of 6 bits in 12 bytes, times one of each for all. Both
// products are exact in float32.
void read_k_scales(Bytes p, float* scales, float* minima) {
    const float scale = half_at(p), minimum = half_at(p + 2);
    Bytes s = p + 4;
    for (int j = 0; j < 8; ++j) {
        const int low = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        const int high = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
        scales[j] = scale * static_cast<float>(low);
        minima[j] = -(minimum * static_cast<float>(high));
    }
}

void read_q4_k(Bytes p, std::size_t blocks, CodeRow to) {
    for (std::size_t b = 0; b < blocks; ++b, p += 144) {
        read_k_scales(p, to.scales + 8 * b, to.minima + 8 * b);
        for (int part = 0; part < 4; ++part)
            for (int i = 0; i < 32; ++i) {
                std::uint8_t* codes = to.codes + 256 * b + 64 * part + i;
                codes[0] = p[16 + 32 * part + i] & 15;
                codes[32] = p[16 + 32 * part + i] >> 4;
            }
    }
}

void read_q5_k(Bytes p, std::size_t blocks, CodeRow to) {
    for (std::size_t b = 0; b < blocks; ++b, p += 176) {
        read_k_scales(p, to.scales + 8 * b, to.minima + 8 * b);
        Bytes fifth = p + 16, nibbles = p + 48;
        for (int part = 0; part < 4; ++part)
            for (int i = 0; i < 32; ++i) {
                std::uint8_t* codes = to.codes + 256 * b + 64 * part + i;
                const int bits = fifth[i] >> (2 * part);
                codes[0] = static_cast<std::uint8_t>((nibbles[32 * part + i] & 15) | (bits & 1) << 4);
                codes[32] = static_cast<std::uint8_t>(nibbles[32 * part + i] >> 4 | (bits >> 1 & 1) << 4);
            }
    }
}

void read_q6_k(Bytes p, std::size_t blocks, CodeRow to) {
    for (std::size_t b = 0; b < blocks; ++b, p += 210) {
        const float scale = half_at(p + 208);
        for (int g = 0; g < 16; ++g)
            to.scales[16 * b + g] = scale * static_cast<float>(static_cast<std::int8_t>(p[192 + g]));
        for (int half = 0; half < 2; ++half) {
            Bytes low = p + 64 * half, high = p + 128 + 32 * half;
            std::uint8_t* codes = to.codes + 256 * b + 128 * half;
            for (int i = 0; i < 32; ++i) {
                codes[i] = static_cast<std::uint8_t>((low[i] & 15) | (high[i] & 3) << 4);
                codes[i + 32] = static_cast<std::uint8_t>((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
                codes[i + 64] = static_cast<std::uint8_t>(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
                codes[i + 96] = static_cast<std::uint8_t>(low[i + 32] >> 4 | (high[i] >> 6 & 3) << 4);
            }
        }
    }
}

// IQ4_NL's values, 128 added to each so that they are unsigned.
#define OCTAVO_IQ4_VALUES {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}

constexpr CodeFormat formats[] = {
    {"Q4_0", {NIBBLE, 32, true, false, 8, {}, 0, false}, 32, 18, read_legacy<false, false>},
    {"Q4_1", {NIBBLE, 32, true, true, 0, {}, 0, false}, 32, 20, read_legacy<true, false>},
    {"Q5_0", {BYTE_TO_31, 32, true, false, 16, {}, 0, false}, 32, 22, read_legacy<false, true>},
    {"Q5_1", {BYTE_TO_31, 32, true, true, 0, {}, 0, false}, 32, 24, read_legacy<true, true>},
    {"Q8_0", {BYTE, 32, true, false, 128, {}, 0, false}, 32, 34, read_q8_0},
    {"Q4_K", {NIBBLE, 32, false, true, 0, {}, 0, false}, 256, 144, read_q4_k},
    {"Q5_K", {BYTE_TO_31, 32, false, true, 0, {}, 0, false}, 256, 176, read_q5_k},
    {"Q6_K", {BYTE_TO_63, 16, false, false, 32, {}, 0, false}, 256, 210, read_q6_k},
    {"IQ4_NL", {NIBBLE_TABLE, 32, true, false, 128, OCTAVO_IQ4_VALUES, 0, false}, 32, 18, read_legacy<false, false>},
    {"int4", {NIBBLE, 32, true, true, 0, {}, 0, false}, 0, 0, nullptr},
    {"int8", {BYTE, 0, false, false, 128, {}, 0, false}, 0, 0, nullptr},
    {"uint4b8/f16", {NIBBLE, 32, true, false, 8, {}, 0, false}, 0, 0, nullptr},
    {"uint4b8/f32", {NIBBLE, 32, false, false, 8, {}, 0, false}, 0, 0, nullptr},
    {"uint4/f16", {NIBBLE, 32, true, true, 0, {}, 0, true}, 0, 0, nullptr},
    {"uint4/f32", {NIBBLE, 32, false, true, 0, {}, 0, true}, 0, 0, nullptr},
    {"uint8b128/f16", {BYTE, 32, true, false, 128, {}, 0, false}, 0, 0, nullptr},
    {"uint8b128/f32", {BYTE, 32, false, false, 128, {}, 0, false}, 0, 0, nullptr},
    {"uint8/f16", {BYTE, 32, true, true, 0, {}, 0, true}, 0, 0, nullptr},
    {"uint8/f32", {BYTE, 32, false, true, 0, {}, 0, true}, 0, 0, nullptr},
};

}  // namespace

const CodeFormat* find_code_format(const std::string& name) {
    for (const CodeFormat& format : formats)
        if (name == format.name) return &format;
    return nullptr;
}

}  // namespace octavo
