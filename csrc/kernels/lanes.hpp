// 32-bit words that hold one float, two bf16 or four int8, and sums of products over them.
//
// Owns: the element types of the KV cache (`F32`, `Bf16`, `Int8`) and `lane_dots`, the one product
// loop of attention.
// Does not know: what keys, values or a cache are.
//
// An element type has STEPS products a word, each with a factor of its own:
//   pick<s>(words)   the operand of step s
//   step(sum, operand, factor)
// With bf16 dot products one step takes both halves of a word and a pair of rounded factors.
#pragma once

#include "simd.hpp"

#if defined(__clang__)
#define OCTAVO_UNROLL _Pragma("unroll")
#else
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")
#endif

namespace octavo::OCTAVO_ISA {

#if defined(__AVX512F__)

struct Words {
    __m512i w;
    static Words load(const std::uint32_t* p) { return {_mm512_loadu_si512(p)}; }
    V floats() const { return {_mm512_castsi512_ps(w)}; }
    V low_bf16() const { return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))}; }
    V high_bf16() const {
        return {_mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(~0xffff)))};
    }
    template <int J>
    V byte() const {
        return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w, 24 - 8 * J), 24))};
    }
};

constexpr int REGISTERS = 32;

#elif defined(__AVX2__) && defined(__FMA__)

struct Words {
    __m256i w;
    static Words load(const std::uint32_t* p) {
        return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
    }
    V floats() const { return {_mm256_castsi256_ps(w)}; }
    V low_bf16() const { return {_mm256_castsi256_ps(_mm256_slli_epi32(w, 16))}; }
    V high_bf16() const {
        return {_mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(~0xffff)))};
    }
    template <int J>
    V byte() const {
        return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w, 24 - 8 * J), 24))};
    }
};

constexpr int REGISTERS = 16;

#else

struct Words {
    std::uint32_t w[V::N];
    static Words load(const std::uint32_t* p) {
        Words r;
        for (std::size_t i = 0; i < V::N; ++i) r.w[i] = p[i];
        return r;
    }
    V floats() const {
        V r;
        std::memcpy(r.v, w, sizeof w);
        return r;
    }
    V low_bf16() const {
        return V::each([&](std::size_t i) { return bf16_to_float(static_cast<std::uint16_t>(w[i])); });
    }
    V high_bf16() const {
        return V::each([&](std::size_t i) { return bf16_to_float(static_cast<std::uint16_t>(w[i] >> 16)); });
    }
    template <int J>
    V byte() const {
        return V::each([&](std::size_t i) { return static_cast<float>(static_cast<std::int8_t>(w[i] >> (8 * J))); });
    }
};

constexpr int REGISTERS = 8;

#endif

// Columns that `rows` rows take at once, at most `most`: their sums, and the operands or the factors,
// whichever are fewer, stay in registers, and two are left to compute with. A sum that does not fit
// costs more than all it saves: each of its additions waits for the memory.
constexpr int columns_for(int rows, int most) {
    const auto taken = [rows](int columns) { return rows * columns + (rows < columns ? rows : columns) + 2; };
    int columns = 1;
    while (columns < most && taken(columns + 1) <= REGISTERS) ++columns;
    return columns;
}

struct F32 {
    static constexpr int PER_WORD = 1, STEPS = 1;
    static constexpr bool SCALED = false;
    template <int S>
    static V pick(Words x) { return x.floats(); }
    static V step(V sum, V x, float factor) { return fma(x, V::set(factor), sum); }
    // Element j of each word.
    static V element(Words x, std::size_t) { return x.floats(); }
    // Makes factors of floats [begin, end), multiples of 16, in place: those of word w begin at
    // values[w * STEPS].
    static void pack(float*, std::size_t, std::size_t) {}
    // Packed factor i.
    static float factor(const float* packed, std::size_t i) { return packed[i]; }
};

struct Bf16Base {
    static constexpr int PER_WORD = 2;
    static constexpr bool SCALED = false;
    static V element(Words x, std::size_t j) { return j == 0 ? x.low_bf16() : x.high_bf16(); }
};

#if defined(__AVX512BF16__)

struct Bf16 : Bf16Base {
    static constexpr int STEPS = 1;
    template <int S>
    static Words pick(Words x) { return x; }
    static V step(V sum, Words x, float pair) {
        return {_mm512_dpbf16_ps(sum.v, (__m512bh)x.w, (__m512bh)_mm512_set1_ps(pair))};
    }
    static void pack(float* values, std::size_t begin, std::size_t end) {
        // Each store ends before the floats that are read next.
        for (std::size_t i = begin; i < end; i += 16) {
            const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(values + i));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i / 2), (__m256i)rounded);
        }
    }
    static float factor(const float* packed, std::size_t i) {
        std::uint16_t value;
        std::memcpy(&value, reinterpret_cast<const unsigned char*>(packed) + 2 * i, sizeof value);
        return bf16_to_float(value);
    }
};

#else

struct Bf16 : Bf16Base {
    static constexpr int STEPS = 2;
    template <int S>
    static V pick(Words x) {
        if constexpr (S == 0) return x.low_bf16();
        else return x.high_bf16();
    }
    static V step(V sum, V x, float factor) { return fma(x, V::set(factor), sum); }
    static void pack(float*, std::size_t, std::size_t) {}
    static float factor(const float* packed, std::size_t i) { return packed[i]; }
};

#endif

struct Int8 {
    static constexpr int PER_WORD = 4, STEPS = 4;
    static constexpr bool SCALED = true;
    template <int S>
    static V pick(Words x) { return x.byte<S>(); }
    static V step(V sum, V x, float factor) { return fma(x, V::set(factor), sum); }
    static V element(Words x, std::size_t j) {
        switch (j) {
            case 0: return x.byte<0>();
            case 1: return x.byte<1>();
            case 2: return x.byte<2>();
            default: return x.byte<3>();
        }
    }
    static void pack(float*, std::size_t, std::size_t) {}
    static float factor(const float* packed, std::size_t i) { return packed[i]; }
};

// Bytes that memory and caches hand on together.
constexpr std::size_t LINE = 64;

template <int LINES>
[[gnu::always_inline]] inline void fetch_lines([[maybe_unused]] const std::uint8_t* at) {
#if defined(__GNUC__)
    OCTAVO_UNROLL
    for (int i = 0; i < LINES; ++i) __builtin_prefetch(at + static_cast<std::size_t>(i) * LINE);
#endif
}

// Step S and those after it, for one word of each column. Whatever is fewer, factors or operands,
// stays in registers.
template <class E, int S, int ROWS, int COLUMNS>
[[gnu::always_inline]] inline void lane_steps(V (&sums)[ROWS][COLUMNS], const Words (&x)[COLUMNS],
                                              const float* factors, std::size_t factor_stride) {
    if constexpr (ROWS < COLUMNS) {
        float factor[ROWS];
        OCTAVO_UNROLL
        for (int r = 0; r < ROWS; ++r) factor[r] = factors[static_cast<std::size_t>(r) * factor_stride + S];
        OCTAVO_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            const auto operand = E::template pick<S>(x[c]);
            OCTAVO_UNROLL
            for (int r = 0; r < ROWS; ++r) sums[r][c] = E::step(sums[r][c], operand, factor[r]);
        }
    } else {
        decltype(E::template pick<S>(x[0])) operand[COLUMNS];
        OCTAVO_UNROLL
        for (int c = 0; c < COLUMNS; ++c) operand[c] = E::template pick<S>(x[c]);
        OCTAVO_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const float factor = factors[static_cast<std::size_t>(r) * factor_stride + S];
            OCTAVO_UNROLL
            for (int c = 0; c < COLUMNS; ++c) sums[r][c] = E::step(sums[r][c], operand[c], factor);
        }
    }
    if constexpr (S + 1 < E::STEPS) lane_steps<E, S + 1>(sums, x, factors, factor_stride);
}

// For each of ROWS rows of factors and each lane of RUN * VECTORS vectors: the sum over `groups`
// words, times their factors, added to `out` (or to zero, FRESH), in the order of the words. Word g
// of vector v in tile t lies at tiles[t] + g * stride + v * V::N. After `groups` words the next RUN
// tiles follow, `runs` times. With each word LINES lines from `ahead` on are asked for.
template <class E, int ROWS, int RUN, int VECTORS, bool FRESH, int LINES>
inline void lane_dots(const std::uint32_t* const* tiles, std::size_t runs, std::size_t stride, std::size_t groups,
                      const float* factors, std::size_t factor_stride, float* out, std::size_t out_stride,
                      const std::uint8_t* ahead) {
    constexpr int COLUMNS = RUN * VECTORS;
    V sums[ROWS][COLUMNS];
    OCTAVO_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        OCTAVO_UNROLL
        for (int c = 0; c < COLUMNS; ++c)
            sums[r][c] = FRESH ? V::zero() : V::load(out + static_cast<std::size_t>(r) * out_stride + c * V::N);
    }
    for (std::size_t run = 0; run < runs; ++run, tiles += RUN) {
        const std::uint32_t* at[RUN];
        OCTAVO_UNROLL
        for (int t = 0; t < RUN; ++t) at[t] = tiles[t];
        for (std::size_t g = 0; g < groups; ++g, factors += E::STEPS) {
            if constexpr (LINES > 0) {
                fetch_lines<LINES>(ahead);
                ahead += LINES * LINE;
            }
            Words x[COLUMNS];
            OCTAVO_UNROLL
            for (int t = 0; t < RUN; ++t) {
                OCTAVO_UNROLL
                for (int v = 0; v < VECTORS; ++v)
                    x[t * VECTORS + v] = Words::load(at[t] + g * stride + v * V::N);
            }
            lane_steps<E, 0>(sums, x, factors, factor_stride);
        }
    }
    OCTAVO_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        OCTAVO_UNROLL
        for (int c = 0; c < COLUMNS; ++c)
            sums[r][c].store(out + static_cast<std::size_t>(r) * out_stride + c * V::N);
    }
}

}  // namespace octavo::OCTAVO_ISA
