// AVX512 in software, for testing those kernels on a processor that lacks it: put before everything
// else of a unit by -include (OCTAVO_EMULATE in CMakeLists.txt). Never part of an installed build.
//
// Owns: SIMDe's emulation under the intrinsics' own names, what SIMDe 0.7 lacks of what is used
// here, and the macros by which the kernels know the instruction set.
// Does not know: kernels. bf16 products are rounded after each addition, unlike the processor's.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo::emulate {

template <class To, class From>
inline To as(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class T, int N>
struct Lanes {
    T v[N];
};

// Applies f to each of N lanes of type A, giving lanes of type B.
template <class To, class A, class B, int N, class From, class F>
inline To each(From from, F f) {
    const auto in = as<Lanes<A, N>>(from);
    Lanes<B, N> out;
    for (int i = 0; i < N; ++i) out.v[i] = f(in.v[i]);
    return as<To>(out);
}

template <class F>
inline std::int32_t reduce(__m512i from, F f) {
    const auto in = as<Lanes<std::int32_t, 16>>(from);
    std::int32_t result = in.v[0];
    for (int i = 1; i < 16; ++i) result = f(result, in.v[i]);
    return result;
}

inline __m512 cvtepi32_ps(__m512i a) {
    return each<__m512, std::int32_t, float, 16>(a, [](std::int32_t x) { return static_cast<float>(x); });
}
// To nearest, ties to even; what does not fit becomes the least integer.
inline __m512i cvtps_epi32(__m512 a) {
    return each<__m512i, float, std::int32_t, 16>(a, [](float x) {
        return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<std::int32_t>(std::nearbyint(x)) : INT32_MIN;
    });
}
inline __m512i srai_epi32(__m512i a, unsigned count) {
    return each<__m512i, std::int32_t, std::int32_t, 16>(a, [=](std::int32_t x) { return x >> (count > 31 ? 31 : count); });
}
inline __m512i cvtepu16_epi32(__m256i a) {
    const auto in = as<Lanes<std::uint16_t, 16>>(a);
    Lanes<std::uint32_t, 16> out;
    for (int i = 0; i < 16; ++i) out.v[i] = in.v[i];
    return as<__m512i>(out);
}
inline __m256i cvtepi32_epi16(__m512i a) {
    const auto in = as<Lanes<std::int32_t, 16>>(a);
    Lanes<std::int16_t, 16> out;
    for (int i = 0; i < 16; ++i) out.v[i] = static_cast<std::int16_t>(in.v[i]);
    return as<__m256i>(out);
}
inline std::int32_t reduce_max_epi32(__m512i a) {
    return reduce(a, [](std::int32_t x, std::int32_t y) { return x > y ? x : y; });
}
inline std::int32_t reduce_add_epi32(__m512i a) {
    return reduce(a, [](std::int32_t x, std::int32_t y) {
        return static_cast<std::int32_t>(static_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(y));
    });
}
inline __m512 maskz_loadu_ps(unsigned mask, const void* from) {
    Lanes<float, 16> out{};
    for (int i = 0; i < 16; ++i)
        if (mask >> i & 1) std::memcpy(&out.v[i], static_cast<const float*>(from) + i, sizeof(float));
    return as<__m512>(out);
}
inline void mask_storeu_ps(void* to, unsigned mask, __m512 a) {
    const auto in = as<Lanes<float, 16>>(a);
    for (int i = 0; i < 16; ++i)
        if (mask >> i & 1) std::memcpy(static_cast<float*>(to) + i, &in.v[i], sizeof(float));
}
inline __m512 cvtph_ps(__m256i a) {
    float out[16];
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm256_castsi256_si128(a)));
    _mm256_storeu_ps(out + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
    return _mm512_loadu_ps(out);
}
// To nearest, ties to even; NaN stays NaN, and what is below the normal numbers becomes zero.
inline std::uint16_t bf16(float x) {
    const auto bits = as<std::uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    if ((bits & 0x7f800000u) == 0) return static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline __m256bh cvtneps_pbh(__m512 a) {
    const auto in = as<Lanes<float, 16>>(a);
    Lanes<std::uint16_t, 16> out;
    for (int i = 0; i < 16; ++i) out.v[i] = bf16(in.v[i]);
    return as<__m256bh>(out);
}

}  // namespace octavo::emulate

#define _mm512_cvtepi32_ps octavo::emulate::cvtepi32_ps
#define _mm512_cvtps_epi32 octavo::emulate::cvtps_epi32
#define _mm512_srai_epi32 octavo::emulate::srai_epi32
#define _mm512_cvtepu16_epi32 octavo::emulate::cvtepu16_epi32
#define _mm512_cvtepi32_epi16 octavo::emulate::cvtepi32_epi16
#define _mm512_reduce_max_epi32 octavo::emulate::reduce_max_epi32
#define _mm512_reduce_add_epi32 octavo::emulate::reduce_add_epi32
#define _mm512_maskz_loadu_ps octavo::emulate::maskz_loadu_ps
#define _mm512_mask_storeu_ps octavo::emulate::mask_storeu_ps
#define _mm512_cvtph_ps octavo::emulate::cvtph_ps
#define _mm512_cvtneps_pbh octavo::emulate::cvtneps_pbh

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512DQ__ 1
#define __AVX512VNNI__ 1
#if defined(OCTAVO_EMULATE_BF16)
#define __AVX512BF16__ 1
#endif
