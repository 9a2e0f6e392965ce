// One token's key and value in their tile: rounding and writing.
//
// Owns: where an element lies in a tile, rounding to the cache's type.
// Does not know: reading for attention (lanes.hpp, attention.hpp), rope.
#pragma once

#include "../kv_types.hpp"
#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

inline std::uint8_t* tile_at(const KvView& view, std::size_t position) {
    // The usual block, without a division.
    if (view.block_tokens == TILE_KEYS)
        return view.base + static_cast<std::size_t>(view.table[position / TILE_KEYS]) * view.block_bytes;
    return view.base + static_cast<std::size_t>(view.table[position / view.block_tokens]) * view.block_bytes +
           position % view.block_tokens / TILE_KEYS * view.shape.bytes;
}

// The element types as stored; `PER_WORD` of them make a 32-bit word.
inline float stored_f32(float x) { return x; }
inline std::uint16_t stored_bf16(float x) { return float_to_bf16(x); }

// Element (dimension d, position j) of the keys, and of the values, counted in elements.
template <std::size_t PER_WORD>
inline std::size_t key_element(std::size_t d, std::size_t j) {
    return (d / PER_WORD * TILE_KEYS + j) * PER_WORD + d % PER_WORD;
}
template <std::size_t PER_WORD>
inline std::size_t value_element(std::size_t d, std::size_t j, std::size_t width) {
    return (j / PER_WORD * width + d) * PER_WORD + j % PER_WORD;
}

template <class T, class Round>
inline void store_rounded(const KvView& view, std::uint8_t* tile, std::size_t j, const float* key,
                          const float* value, Round round) {
    constexpr std::size_t PER_WORD = sizeof(std::uint32_t) / sizeof(T);
    T* keys = reinterpret_cast<T*>(tile);
    T* values = keys + view.shape.words * PER_WORD;
    for (std::size_t d = 0; d < view.shape.head_dim; ++d)
        keys[key_element<PER_WORD>(d, j)] = round(key[d]);
    for (std::size_t d = 0; d < view.shape.head_dim; ++d)
        values[value_element<PER_WORD>(d, j, view.shape.width)] = round(value[d]);
}

// x as codes of -127 to 127 times the returned scale. What is not finite makes the scale NaN.
template <class At>
inline float store_codes(const float* x, std::size_t count, std::int8_t* codes, At at) {
    float largest = 0.0f;
    bool finite = true;
    for (std::size_t d = 0; d < count; ++d) {
        const float size = std::fabs(x[d]);
        finite &= size < INFINITY;  // false for NaN
        largest = size > largest ? size : largest;
    }
    const float scale = largest / 127.0f;
    const bool some = finite && scale > 0.0f;
    for (std::size_t d = 0; d < count; ++d) {
        float code = some ? std::nearbyint(x[d] / scale) : 0.0f;
        code = code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code;  // of denormal scales
        codes[at(d)] = static_cast<std::int8_t>(code);
    }
    return finite ? scale : NAN;
}

inline void store_int8(const KvView& view, std::uint8_t* tile, std::size_t j, const float* key,
                       const float* value) {
    const TileShape& shape = view.shape;
    std::int8_t* keys = reinterpret_cast<std::int8_t*>(tile);
    std::int8_t* values = keys + 4 * shape.words;
    float* scales = reinterpret_cast<float*>(values + 4 * shape.words);
    scales[j] = store_codes(key, shape.head_dim, keys, [&](std::size_t d) { return key_element<4>(d, j); });
    scales[TILE_KEYS + j] = store_codes(value, shape.head_dim, values, [&](std::size_t d) {
        return value_element<4>(d, j, shape.width);
    });
}

// One token's key and value (head_dim floats each) to `position`, rounded to nearest.
inline void store_kv(const KvView& view, std::size_t position, const float* key, const float* value) {
    std::uint8_t* tile = tile_at(view, position);
    const std::size_t j = position % TILE_KEYS;
    switch (view.shape.type) {
        case KvType::f32: return store_rounded<float>(view, tile, j, key, value, stored_f32);
        case KvType::bf16: return store_rounded<std::uint16_t>(view, tile, j, key, value, stored_bf16);
        case KvType::int8: return store_int8(view, tile, j, key, value);
    }
}

}  // namespace octavo::OCTAVO_ISA
