// What the processor can do at best: reading memory, and dot products in each format.
//
// Owns: loops that do nothing else. Each product is one tile of a large product with both operands in
// the first-level cache: the same loads and dot instructions that a real kernel's innermost loop has,
// and no edges, so that a kernel's rate over this one says how much of the machine it uses.
#pragma once

#include "bf16.hpp"

namespace octavo::OCTAVO_ISA {

// Inputs of a tile: few enough that the operands of all tiles below fit the first-level cache.
constexpr std::size_t CEILING_DEPTH = 64;

struct CeilingOperands {
    alignas(64) unsigned char weights[16384];
    alignas(64) unsigned char inputs[2048];
};

template <class T>
inline void ceiling_fill(unsigned char* bytes, std::size_t size, T value) {
    for (std::size_t i = 0; i + sizeof(T) <= size; i += sizeof(T)) std::memcpy(bytes + i, &value, sizeof(T));
}

// Reads `bytes` (a multiple of 256) from memory once; returns a number that depends on all of them.
// Four streams side by side: one alone leaves a third of the bandwidth unused.
inline float ceiling_read(const float* data, std::size_t bytes) {
    V sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    constexpr std::size_t LINE = 16;
    const std::size_t stream = bytes / sizeof(float) / 4;
    for (std::size_t i = 0; i + LINE <= stream; i += LINE)
        for (std::size_t s = 0; s < 4; ++s) {
            const float* const at = data + s * stream + i;
#if defined(__GNUC__)
            // Ahead, across the end of a page, where the processor's own prefetch stops.
            __builtin_prefetch(at + 384);
#endif
            for (std::size_t j = 0; j < LINE; j += V::N) sums[s] = sums[s] + V::load(at + j);
        }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// R rows by C vectors of outputs, `rounds` times over CEILING_DEPTH inputs. Step::run adds to
// sums[R][C] what one group of Step::inputs inputs gives.
template <std::size_t R, std::size_t C, class Step>
inline double ceiling_tile(std::size_t rounds, float* out, CeilingOperands& operands) {
    typename Step::Sum sums[R][C];
    for (std::size_t r = 0; r < R; ++r)
        for (std::size_t c = 0; c < C; ++c) sums[r][c] = Step::zero();
    for (std::size_t round = 0; round < rounds; ++round) {
        for (std::size_t k = 0; k < CEILING_DEPTH / Step::inputs; ++k)
            Step::template run<R, C>(sums, operands.weights + k * C * Step::weight_bytes,
                                     operands.inputs + k * R * Step::input_bytes);
#if defined(__GNUC__)
        // The operands might have changed: no round may be left out because it equals another.
        asm volatile("" : : "r"(&operands) : "memory");
#endif
    }
    float total = 0.0f;
    for (std::size_t r = 0; r < R; ++r)
        for (std::size_t c = 0; c < C; ++c) total += Step::total(sums[r][c]);
    *out = total;
    return 2.0 * static_cast<double>(rounds * R * C * Step::outputs) * CEILING_DEPTH;
}

// One input of each row times a column of outputs.
template <std::size_t R, std::size_t C>
inline void ceiling_fma(V (&sums)[R][C], const float* x, const V (&column)[C]) {
    for (std::size_t r = 0; r < R; ++r) {
        const V row = V::set(x[r]);
        for (std::size_t c = 0; c < C; ++c) sums[r][c] = fma(row, column[c], sums[r][c]);
    }
}

struct CeilingFloatStep {
    using Sum = V;
    static constexpr std::size_t inputs = 1, outputs = V::N, weight_bytes = 4 * V::N, input_bytes = 4;
    static Sum zero() { return V::zero(); }
    static float total(Sum s) { return sum(s); }

    template <std::size_t R, std::size_t C>
    static void run(Sum (&sums)[R][C], const unsigned char* weights, const unsigned char* inputs) {
        const float* w = reinterpret_cast<const float*>(weights);
        const float* x = reinterpret_cast<const float*>(inputs);
        V column[C];
        for (std::size_t c = 0; c < C; ++c) column[c] = V::load(w + c * V::N);
        ceiling_fma(sums, x, column);
    }
};

#if defined(__AVX512BF16__)

// vdpbf16ps: a lane holds two inputs of one output.
struct CeilingBf16Step {
    using Sum = __m512;
    static constexpr std::size_t inputs = 2, outputs = 16, weight_bytes = 64, input_bytes = 4;
    static Sum zero() { return _mm512_setzero_ps(); }
    static float total(Sum s) { return sum(V{s}); }

    template <std::size_t R, std::size_t C>
    static void run(Sum (&sums)[R][C], const unsigned char* weights, const unsigned char* inputs) {
        __m512bh column[C];
        for (std::size_t c = 0; c < C; ++c)
            column[c] = reinterpret_cast<__m512bh>(_mm512_load_si512(weights + 64 * c));
        for (std::size_t r = 0; r < R; ++r) {
            std::int32_t pair;
            std::memcpy(&pair, inputs + 4 * r, sizeof pair);
            const __m512bh row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
            for (std::size_t c = 0; c < C; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], row, column[c]);
        }
    }
};
#define OCTAVO_BF16_PATH "vdpbf16ps"

#else

// Pairs of bf16 weights widened as they are loaded, float32 inputs and sums.
struct CeilingBf16Step {
    using Sum = V;
    static constexpr std::size_t inputs = 2, outputs = V::N, weight_bytes = 4 * V::N, input_bytes = 8;
    static Sum zero() { return V::zero(); }
    static float total(Sum s) { return sum(s); }

    template <std::size_t R, std::size_t C>
    static void run(Sum (&sums)[R][C], const unsigned char* weights, const unsigned char* inputs) {
        const std::uint16_t* w = reinterpret_cast<const std::uint16_t*>(weights);
        const float* x = reinterpret_cast<const float*>(inputs);
        V column[C];  // either half in turn: both at once would not fit the registers
        for (std::size_t c = 0; c < C; ++c) column[c] = first_of_pairs(w + c * 2 * V::N);
        ceiling_fma(sums, x, column);
        for (std::size_t c = 0; c < C; ++c) column[c] = second_of_pairs(w + c * 2 * V::N);
        ceiling_fma(sums, x + R, column);
    }
};
#define OCTAVO_BF16_PATH "widened to float32"

#endif

#if defined(__AVX512VNNI__) && defined(__AVX512F__)

// vpdpbusd: a lane holds four inputs of one output; unsigned weights, signed activations.
struct CeilingInt8Step {
    using Sum = __m512i;
    static constexpr std::size_t inputs = 4, outputs = 16, weight_bytes = 64, input_bytes = 4;
    static Sum zero() { return _mm512_setzero_si512(); }
    static float total(Sum s) {
        alignas(64) std::int32_t lanes[16];
        _mm512_store_si512(lanes, s);
        float all = 0.0f;
        for (const std::int32_t lane : lanes) all += static_cast<float>(lane);
        return all;
    }

    template <std::size_t R, std::size_t C>
    static void run(Sum (&sums)[R][C], const unsigned char* weights, const unsigned char* inputs) {
        __m512i column[C];
        for (std::size_t c = 0; c < C; ++c) column[c] = _mm512_load_si512(weights + 64 * c);
        for (std::size_t r = 0; r < R; ++r) {
            std::int32_t four;
            std::memcpy(&four, inputs + 4 * r, sizeof four);
            const __m512i row = _mm512_set1_epi32(four);
            for (std::size_t c = 0; c < C; ++c) sums[r][c] = _mm512_dpbusd_epi32(sums[r][c], column[c], row);
        }
    }
};
#define OCTAVO_INT8_PATH "vpdpbusd"

#elif defined(__AVX2__)

// vpmaddubsw to pairs of 16 bits, vpmaddwd by ones to 32: exact for products of 7 by 8 bits.
struct CeilingInt8Step {
    using Sum = __m256i;
    static constexpr std::size_t inputs = 4, outputs = 8, weight_bytes = 32, input_bytes = 4;
    static Sum zero() { return _mm256_setzero_si256(); }
    static float total(Sum s) {
        alignas(32) std::int32_t lanes[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), s);
        float all = 0.0f;
        for (const std::int32_t lane : lanes) all += static_cast<float>(lane);
        return all;
    }

    template <std::size_t R, std::size_t C>
    static void run(Sum (&sums)[R][C], const unsigned char* weights, const unsigned char* inputs) {
        const __m256i ones = _mm256_set1_epi16(1);
        __m256i column[C];
        for (std::size_t c = 0; c < C; ++c)
            column[c] = _mm256_load_si256(reinterpret_cast<const __m256i*>(weights + 32 * c));
        for (std::size_t r = 0; r < R; ++r) {
            std::int32_t four;
            std::memcpy(&four, inputs + 4 * r, sizeof four);
            const __m256i row = _mm256_set1_epi32(four);
            for (std::size_t c = 0; c < C; ++c) {
                const __m256i pairs = _mm256_maddubs_epi16(column[c], row);
                sums[r][c] = _mm256_add_epi32(sums[r][c], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
};
#define OCTAVO_INT8_PATH "vpmaddubsw"

#else

// Plain loops over eight outputs, four inputs a lane.
struct CeilingInt8Step {
    struct Sum {
        std::int32_t lane[8];
    };
    static constexpr std::size_t inputs = 4, outputs = 8, weight_bytes = 32, input_bytes = 4;
    static Sum zero() { return {}; }
    static float total(const Sum& s) {
        float all = 0.0f;
        for (const std::int32_t lane : s.lane) all += static_cast<float>(lane);
        return all;
    }

    template <std::size_t R, std::size_t C>
    static void run(Sum (&sums)[R][C], const unsigned char* weights, const unsigned char* inputs) {
        const signed char* x = reinterpret_cast<const signed char*>(inputs);
        for (std::size_t r = 0; r < R; ++r)
            for (std::size_t c = 0; c < C; ++c)
                for (std::size_t i = 0; i < 8; ++i) {
                    const unsigned char* w = weights + 32 * c + 4 * i;
                    for (std::size_t k = 0; k < 4; ++k) sums[r][c].lane[i] += w[k] * x[4 * r + k];
                }
    }
};
#define OCTAVO_INT8_PATH "plain loops"

#endif

#if defined(__AVX512F__)
constexpr std::size_t CEILING_ROWS = 6, CEILING_VECTORS = 4;  // 24 sums, 4 columns, 1 row of 32 registers
#else
constexpr std::size_t CEILING_ROWS = 6, CEILING_VECTORS = 2;  // 12 sums, 2 columns, 1 row of 16 registers
#endif

template <class Step, class Weight, class Input>
inline double ceiling_product(std::size_t rounds, float* out, Weight weight, Input input) {
    CeilingOperands operands;
    constexpr std::size_t groups = CEILING_DEPTH / Step::inputs;
    static_assert(groups * CEILING_VECTORS * Step::weight_bytes <= sizeof operands.weights);
    static_assert(groups * CEILING_ROWS * Step::input_bytes <= sizeof operands.inputs);
    ceiling_fill(operands.weights, sizeof operands.weights, weight);
    ceiling_fill(operands.inputs, sizeof operands.inputs, input);
    return ceiling_tile<CEILING_ROWS, CEILING_VECTORS, Step>(rounds, out, operands);
}

// Each returns the operations done (a multiplication and an addition are two) and puts into `out` a
// number that depends on them all.
inline double ceiling_float(std::size_t rounds, float* out) {
    return ceiling_product<CeilingFloatStep>(rounds, out, 0.5f, 0.25f);
}

inline double ceiling_bf16(std::size_t rounds, float* out) {
#if defined(__AVX512BF16__)
    return ceiling_product<CeilingBf16Step>(rounds, out, float_to_bf16(0.5f), float_to_bf16(0.25f));
#else
    return ceiling_product<CeilingBf16Step>(rounds, out, float_to_bf16(0.5f), 0.25f);
#endif
}

inline double ceiling_int8(std::size_t rounds, float* out) {
    return ceiling_product<CeilingInt8Step>(rounds, out, static_cast<unsigned char>(3), static_cast<signed char>(2));
}

}  // namespace octavo::OCTAVO_ISA
