// Dot products of unsigned weight codes with signed activation codes, four inputs to a lane.
//
// Owns: the step that differs between instruction sets. `Dot<kind>` gives
//   Weights, Inputs   one vector of codes; the four codes of one row, broadcast
//   Partial, RUN      a running sum, and how many steps of four inputs it may take before `end`
//   end               adds a running sum, times a multiplier, to a sum; it begins at zero
//   STEP              bytes of a row's four activation codes; 8: they are multiplied already
//   AT_ONCE           output vectors that are worked on together, as the registers allow
// Does not know: scales, layouts beyond one vector. All sums of integers are exact.
#pragma once

#include "code_types.hpp"
#include "half.hpp"
#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

#if defined(__AVX2__)
// Pins a running sum to its register and its place in the order of work. Sums of integers may be
// re-associated, and the compiler does so until it has no registers left.
template <class T>
inline T pinned(T x) {
#if defined(__AVX512F__) && !defined(OCTAVO_EMULATE)
    asm("" : "+v"(x));
#elif !defined(__AVX512F__)
    asm("" : "+x"(x));
#endif
    return x;
}
#endif

constexpr bool is_nibble(CodeKind kind) { return kind == NIBBLE || kind == NIBBLE_TABLE; }

#if defined(__AVX512VNNI__)

constexpr int CODE_VECTORS = 4;

using Ints = __m512i;
inline Ints ints_zero() { return _mm512_setzero_si512(); }
inline Ints ints_set(std::int32_t x) { return _mm512_set1_epi32(x); }
inline V to_float(Ints a) { return {_mm512_cvtepi32_ps(a)}; }
inline V load_half(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

// The largest magnitude of n values as a float's bits: what is not finite is larger than all else.
inline std::uint32_t largest_bits(const float* x, std::size_t n) {
    Ints most = ints_zero();
    for (std::size_t i = 0; i < n; i += 16)
        most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_loadu_si512(x + i), ints_set(0x7fffffff)));
    return static_cast<std::uint32_t>(_mm512_reduce_max_epi32(most));
}
// Sixteen values times `inverse`, rounded to nearest, ties to even; returns the codes' sum.
inline std::int32_t round_codes(const float* x, float inverse, std::int16_t* codes) {
    const Ints rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi32_epi16(rounded));
    return _mm512_reduce_add_epi32(rounded);
}
// 32 codes from 16 bits to 8.
inline void narrow_codes(const std::int16_t* codes, std::uint8_t* bytes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes),
                        _mm512_cvtepi16_epi8(_mm512_loadu_si512(codes)));
}

// A multiplier as `Dot::end` takes it, to be broadcast to all lanes.
constexpr std::int32_t multiplier_word(std::int32_t m) { return m; }

// The codes of step `step` (of four inputs) of output vector `j`.
template <CodeKind kind>
inline Ints fetch(const std::uint8_t* codes, int step, int j, const std::uint8_t* table) {
    if constexpr (!is_nibble(kind)) return _mm512_loadu_si512(codes + (step * CODE_VECTORS + j) * 64);
    const Ints low = _mm512_set1_epi8(15);
    Ints both = _mm512_loadu_si512(codes + (step / 2 * CODE_VECTORS + j) * 64);
    if (step % 2) both = _mm512_srli_epi16(both, 4);
    const Ints codes4 = _mm512_and_si512(both, low);
    if constexpr (kind == NIBBLE) return codes4;
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), codes4);
}

template <CodeKind kind>
struct Dot {
    using Weights = Ints;
    using Inputs = Ints;
    using Partial = Ints;
    static constexpr int RUN = 8;
    static constexpr int STEP = 4;
    static constexpr int AT_ONCE = CODE_VECTORS;

    static Weights widen(Ints codes) { return codes; }
    static Inputs broadcast(const std::uint8_t* p) {
        std::int32_t four;
        std::memcpy(&four, p, sizeof four);
        return _mm512_set1_epi32(four);
    }
    static Partial add(Partial p, Weights w, Inputs a) { return pinned(_mm512_dpbusd_epi32(p, w, a)); }
    // Sixteen products of nibbles fit 16 bits, so one instruction for pairs of those does both; the
    // pair's other half meets the multiplier's upper 16 bits, which are zero.
    static Ints end(Ints sum, Partial p, std::int32_t multiplier) {
        const Ints m = ints_set(multiplier);
        if constexpr (kind == NIBBLE) return _mm512_dpwssd_epi32(sum, p, m);
        return _mm512_add_epi32(sum, _mm512_mullo_epi32(p, m));
    }
};

#elif defined(__AVX2__)

constexpr int CODE_VECTORS = 2;

using Ints = __m256i;
inline Ints ints_zero() { return _mm256_setzero_si256(); }
inline Ints ints_set(std::int32_t x) { return _mm256_set1_epi32(x); }
inline V to_float(Ints a) { return {_mm256_cvtepi32_ps(a)}; }
inline V load_half(const void* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}

inline __m128i halves_of(Ints a, __m128i (*join)(__m128i, __m128i)) {
    return join(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
// The largest magnitude of n values as a float's bits: what is not finite is larger than all else.
inline std::uint32_t largest_bits(const float* x, std::size_t n) {
    Ints most = ints_zero();
    for (std::size_t i = 0; i < n; i += 8) {
        const Ints bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        most = _mm256_max_epi32(most, _mm256_and_si256(bits, ints_set(0x7fffffff)));
    }
    __m128i four = halves_of(most, _mm_max_epi32);
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}
// Sixteen values times `inverse`, rounded to nearest, ties to even; returns the codes' sum.
inline std::int32_t round_codes(const float* x, float inverse, std::int16_t* codes) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const Ints low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
    const Ints high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
    const Ints mixed = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), mixed);
    __m128i four = halves_of(_mm256_add_epi32(low, high), _mm_add_epi32);
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}
// 32 codes from 16 bits to 8.
inline void narrow_codes(const std::int16_t* codes, std::uint8_t* bytes) {
    const Ints low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const Ints high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes),
                        _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8));
}

// A multiplier as `Dot::end` takes it: for both numbers of a pair of 16 bits.
constexpr std::int32_t multiplier_word(std::int32_t m) { return m | m << 16; }

template <CodeKind kind>
inline Ints fetch(const std::uint8_t* codes, int step, int j, const std::uint8_t* table) {
    const int at = is_nibble(kind) ? step / 2 : step;
    Ints both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + (at * CODE_VECTORS + j) * 32));
    if constexpr (!is_nibble(kind)) return both;
    if (step % 2) both = _mm256_srli_epi16(both, 4);
    const Ints codes4 = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if constexpr (kind == NIBBLE) return codes4;
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes4);
}

inline Ints broadcast4(const std::uint8_t* p) {
    std::int32_t four;
    std::memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

// Codes up to 15, 31 or 63: a pair of products is at most 2 * code * 127, and eight, four or two
// such pairs fit 16 bits (30,480, 31,496 and 32,004 of 32,767); no more than four share a multiplier.
template <CodeKind kind>
struct Dot {
    using Weights = Ints;
    using Inputs = Ints;
    using Partial = Ints;
    static constexpr int RUN = kind == BYTE_TO_63 ? 2 : 4;
    static constexpr int STEP = 4;
    static constexpr int AT_ONCE = CODE_VECTORS;

    static Weights widen(Ints codes) { return codes; }
    static Inputs broadcast(const std::uint8_t* p) { return broadcast4(p); }
    static Partial add(Partial p, Weights w, Inputs a) {
        return pinned(_mm256_add_epi16(p, _mm256_maddubs_epi16(w, a)));
    }
    // Pairs have to be added anyway: the multiplier comes for nothing.
    static Ints end(Ints sum, Partial p, std::int32_t multiplier) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(p, ints_set(multiplier)));
    }
};

// Codes of all 8 bits: one pair alone could overflow 16 bits, so both sides are widened to them, the
// weights once for all rows. Even and odd inputs apart, which needs no moves between lanes.
struct WideDot {
    struct Weights {
        Ints even, odd;
    };
    using Inputs = Weights;
    using Partial = Ints;
    static constexpr int RUN = 8;
    static constexpr int STEP = 8;
    static constexpr int AT_ONCE = CODE_VECTORS;

    static Weights widen(Ints codes) {
        return {_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16(codes, 8)};
    }
    static Inputs broadcast(const std::uint8_t* p) { return {broadcast4(p), broadcast4(p + 4)}; }
    static Partial add(Partial p, const Weights& w, const Inputs& a) {
        p = pinned(_mm256_add_epi32(p, _mm256_madd_epi16(w.even, a.even)));
        return pinned(_mm256_add_epi32(p, _mm256_madd_epi16(w.odd, a.odd)));
    }
};
template <>
struct Dot<NIBBLE_TABLE> : WideDot {};
template <>
struct Dot<BYTE> : WideDot {};

#else

constexpr int CODE_VECTORS = 2;

struct Ints {
    std::int32_t v[V::N];
};
inline Ints ints_set(std::int32_t x) {
    Ints r;
    for (std::size_t i = 0; i < V::N; ++i) r.v[i] = x;
    return r;
}
inline Ints ints_zero() { return ints_set(0); }
inline V to_float(const Ints& a) {
    return V::each([&](std::size_t i) { return static_cast<float>(a.v[i]); });
}
constexpr std::int32_t multiplier_word(std::int32_t m) { return m; }
inline V load_half(const void* p) {
    std::uint16_t halves[V::N];
    std::memcpy(halves, p, sizeof halves);
    return V::each([&](std::size_t i) { return half_to_float(halves[i]); });
}

inline std::uint32_t largest_bits(const float* x, std::size_t n) {
    std::uint32_t most = 0;
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}
inline std::int32_t round_codes(const float* x, float inverse, std::int16_t* codes) {
    std::int32_t sum = 0;
    for (int i = 0; i < 16; ++i) {
        codes[i] = static_cast<std::int16_t>(std::nearbyint(x[i] * inverse));
        sum += codes[i];
    }
    return sum;
}
inline void narrow_codes(const std::int16_t* codes, std::uint8_t* bytes) {
    for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::uint8_t>(codes[i]);
}

struct Codes {
    std::uint8_t v[4 * V::N];
};

template <CodeKind kind>
inline Codes fetch(const std::uint8_t* codes, int step, int j, const std::uint8_t* table) {
    const int at = is_nibble(kind) ? step / 2 : step;
    Codes r;
    std::memcpy(r.v, codes + (at * CODE_VECTORS + j) * sizeof r.v, sizeof r.v);
    if (is_nibble(kind))
        for (std::uint8_t& code : r.v) code = step % 2 ? code >> 4 : code & 15;
    if (kind == NIBBLE_TABLE)
        for (std::uint8_t& code : r.v) code = table[code];
    return r;
}

template <CodeKind kind>
struct Dot {
    using Weights = Codes;
    struct Inputs {
        std::int8_t v[4];
    };
    using Partial = Ints;
    static constexpr int RUN = 8;
    static constexpr int STEP = 4;
    static constexpr int AT_ONCE = CODE_VECTORS;

    static const Weights& widen(const Codes& codes) { return codes; }
    static Inputs broadcast(const std::uint8_t* p) {
        Inputs a;
        std::memcpy(a.v, p, sizeof a.v);
        return a;
    }
    static Partial add(Partial p, const Weights& w, const Inputs& a) {
        for (std::size_t i = 0; i < V::N; ++i)
            for (std::size_t t = 0; t < 4; ++t) p.v[i] += w.v[4 * i + t] * a.v[t];
        return p;
    }
    static Ints end(Ints sum, const Partial& p, std::int32_t multiplier) {
        for (std::size_t i = 0; i < V::N; ++i) sum.v[i] += p.v[i] * multiplier;
        return sum;
    }
};

#endif

}  // namespace octavo::OCTAVO_ISA
