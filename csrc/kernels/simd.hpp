// One vector of floats, as wide as the instruction set that this is compiled for.
//
// Owns: `V` (a vector of `V::N` floats), its arithmetic, conversions from and to bf16, exp.
// Does not know: what is computed. Each instruction set compiles this in a namespace of its own
// (OCTAVO_ISA), with its own compiler flags; nothing here may be called across them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA {

inline float bf16_to_float(std::uint16_t value) {
    const std::uint32_t bits = std::uint32_t{value} << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline std::uint16_t float_to_bf16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if defined(__AVX512F__)

struct V {
    static constexpr std::size_t N = 16;
    __m512 v;

    static V zero() { return {_mm512_setzero_ps()}; }
    static V set(float x) { return {_mm512_set1_ps(x)}; }
    static V load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static V load_first(const float* p, std::size_t n) {
        return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p)};
    }
    static V load_bf16(const std::uint16_t* p) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    void store_first(float* p, std::size_t n) const {
        _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v);
    }
    friend V operator+(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend V operator-(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend V operator*(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
    friend V operator/(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
    friend V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
    friend V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
    // a * b + c in one rounding.
    friend V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
    friend V round(V a) { return {_mm512_roundscale_ps(a.v, 8)}; }
    friend V copy_sign(V size, V sign) {
        const __m512 bit = _mm512_set1_ps(-0.0f);
        return {_mm512_or_ps(_mm512_andnot_ps(bit, size.v), _mm512_and_ps(bit, sign.v))};
    }
    friend bool any_above(V a, V b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
    // a * 2^n for integral n.
    friend V scale_by_power(V a, V n) { return {_mm512_scalef_ps(a.v, n.v)}; }
};

#elif defined(__AVX2__) && defined(__FMA__)

struct V {
    static constexpr std::size_t N = 8;
    __m256 v;

    static __m256i mask(std::size_t n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
    }
    static V zero() { return {_mm256_setzero_ps()}; }
    static V set(float x) { return {_mm256_set1_ps(x)}; }
    static V load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static V load_first(const float* p, std::size_t n) { return {_mm256_maskload_ps(p, mask(n))}; }
    static V load_bf16(const std::uint16_t* p) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
    }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
    void store_first(float* p, std::size_t n) const { _mm256_maskstore_ps(p, mask(n), v); }
    friend V operator+(V a, V b) { return {_mm256_add_ps(a.v, b.v)}; }
    friend V operator-(V a, V b) { return {_mm256_sub_ps(a.v, b.v)}; }
    friend V operator*(V a, V b) { return {_mm256_mul_ps(a.v, b.v)}; }
    friend V operator/(V a, V b) { return {_mm256_div_ps(a.v, b.v)}; }
    friend V max(V a, V b) { return {_mm256_max_ps(a.v, b.v)}; }
    friend V min(V a, V b) { return {_mm256_min_ps(a.v, b.v)}; }
    friend V fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
    friend V round(V a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
    friend V copy_sign(V size, V sign) {
        const __m256 bit = _mm256_set1_ps(-0.0f);
        return {_mm256_or_ps(_mm256_andnot_ps(bit, size.v), _mm256_and_ps(bit, sign.v))};
    }
    friend bool any_above(V a, V b) {
        return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0;
    }
    friend V scale_by_power(V a, V n) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
        return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
    }
};

#else

// Plain loops over eight lanes, which any compiler turns into what the processor has.
struct V {
    static constexpr std::size_t N = 8;
    float v[N];

    template <class F>
    static V each(F f) {
        V r;
        for (std::size_t i = 0; i < N; ++i) r.v[i] = f(i);
        return r;
    }
    static V zero() { return set(0.0f); }
    static V set(float x) { return each([&](std::size_t) { return x; }); }
    static V load(const float* p) { return each([&](std::size_t i) { return p[i]; }); }
    static V load_first(const float* p, std::size_t n) {
        return each([&](std::size_t i) { return i < n ? p[i] : 0.0f; });
    }
    static V load_bf16(const std::uint16_t* p) {
        return each([&](std::size_t i) { return bf16_to_float(p[i]); });
    }
    void store(float* p) const {
        for (std::size_t i = 0; i < N; ++i) p[i] = v[i];
    }
    void store_first(float* p, std::size_t n) const {
        for (std::size_t i = 0; i < n; ++i) p[i] = v[i];
    }
    friend V operator+(V a, V b) { return each([&](std::size_t i) { return a.v[i] + b.v[i]; }); }
    friend V operator-(V a, V b) { return each([&](std::size_t i) { return a.v[i] - b.v[i]; }); }
    friend V operator*(V a, V b) { return each([&](std::size_t i) { return a.v[i] * b.v[i]; }); }
    friend V operator/(V a, V b) { return each([&](std::size_t i) { return a.v[i] / b.v[i]; }); }
    // As the vector instructions do: the second operand where one is NaN.
    friend V max(V a, V b) {
        return each([&](std::size_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
    }
    friend V min(V a, V b) {
        return each([&](std::size_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
    }
    // Two roundings: there may be no instruction for one, and emulating it is slow.
    friend V fma(V a, V b, V c) {
        return each([&](std::size_t i) { return a.v[i] * b.v[i] + c.v[i]; });
    }
    friend V round(V a) { return each([&](std::size_t i) { return std::nearbyint(a.v[i]); }); }
    friend V copy_sign(V size, V sign) {
        return each([&](std::size_t i) { return std::copysign(size.v[i], sign.v[i]); });
    }
    friend bool any_above(V a, V b) {
        bool any = false;
        for (std::size_t i = 0; i < N; ++i) any |= a.v[i] > b.v[i];
        return any;
    }
    friend V scale_by_power(V a, V n) {
        return each([&](std::size_t i) { return std::ldexp(a.v[i], static_cast<int>(n.v[i])); });
    }
};

#endif

// The sum of all lanes, by halves: the same order in every call.
inline float sum(V a) {
    float lanes[V::N];
    a.store(lanes);
    for (std::size_t half = V::N / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

inline float largest(V a) {
    float lanes[V::N];
    a.store(lanes);
    for (std::size_t half = V::N / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i)
            lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
    return lanes[0];
}

// e^x to about 2e-7 relative for x in [-87, 88]; below, 0 to within a denormal.
inline V exp(V x) {
    const V bounded = max(min(x, V::set(88.0f)), V::set(-87.0f));
    const V t = bounded * V::set(1.44269504f);
    const V n = round(t);
    // The remainder in two parts of ln 2, so that no bits are lost for large |x|.
    const V r = fma(n, V::set(-1.42860677e-6f), fma(n, V::set(-0.693145752f), bounded));
    V p = V::set(1.3981999e-3f);
    p = fma(p, r, V::set(8.3334519e-3f));
    p = fma(p, r, V::set(4.1665795e-2f));
    p = fma(p, r, V::set(1.6666665e-1f));
    p = fma(p, r, V::set(0.5f));
    p = fma(p, r, V::set(1.0f));
    p = fma(p, r, V::set(1.0f));
    return scale_by_power(p, n);
}

}  // namespace octavo::OCTAVO_ISA
