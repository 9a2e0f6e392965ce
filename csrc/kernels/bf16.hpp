// Pairs of bf16 values, one pair in each 32-bit lane: what packed bf16 is made of.
//
// Owns: widening either half of the pairs; the product of pairs, where the processor has it.
// Does not know: what is packed.
#pragma once

#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

#if defined(__AVX512F__)

// The first value of each of V::N pairs.
inline V first_of_pairs(const std::uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline V second_of_pairs(const std::uint16_t* p) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high))};
}

#elif defined(__AVX2__) && defined(__FMA__)

inline V first_of_pairs(const std::uint16_t* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))};
}
inline V second_of_pairs(const std::uint16_t* p) {
    // Read from memory each time: a tile of six rows has no register left to hold it, and a compiler
    // that tries keeps a sum in memory instead, which costs a quarter of the speed.
    alignas(32) static const volatile std::uint32_t high[8] = {~0xffffu, ~0xffffu, ~0xffffu, ~0xffffu,
                                                               ~0xffffu, ~0xffffu, ~0xffffu, ~0xffffu};
    const __m256i mask = *reinterpret_cast<const volatile __m256i*>(high);
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_and_si256(pairs, mask))};
}

#else

inline V first_of_pairs(const std::uint16_t* p) {
    return V::each([&](std::size_t i) { return bf16_to_float(p[2 * i]); });
}
inline V second_of_pairs(const std::uint16_t* p) {
    return V::each([&](std::size_t i) { return bf16_to_float(p[2 * i + 1]); });
}

#endif

#if defined(__AVX512BF16__)

// sum + a pair of inputs, the same in every lane, times a pair of each lane.
inline V dot_pairs(V sum, const std::uint16_t* inputs, const std::uint16_t* pairs) {
    std::int32_t both;
    std::memcpy(&both, inputs, sizeof both);
    const __m512i a = _mm512_set1_epi32(both);
    const __m512i b = _mm512_loadu_si512(pairs);
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)a, (__m512bh)b)};
}

#endif

}  // namespace octavo::OCTAVO_ISA
