// Comparisons and choices by lane, which simd.hpp's arithmetic does without.
#pragma once

#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

// above, at_least: bit i of the result tells of lane i; a NaN on either side gives 0.
// keep_above: `value` in the lanes where x > limit, 0 in the others.
// by_sign: `negative` where the sign bit of x is set, `positive` elsewhere.

#if defined(__AVX512F__)

inline unsigned above(V a, V b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline unsigned at_least(V a, V b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
inline V keep_above(V value, V x, V limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GT_OQ), value.v)};
}
inline V by_sign(V x, V negative, V positive) {
    const __mmask16 signs = _mm512_movepi32_mask(_mm512_castps_si512(x.v));
    return {_mm512_mask_blend_ps(signs, positive.v, negative.v)};
}

#elif defined(__AVX2__) && defined(__FMA__)

inline unsigned above(V a, V b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)));
}
inline unsigned at_least(V a, V b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)));
}
inline V keep_above(V value, V x, V limit) {
    return {_mm256_and_ps(value.v, _mm256_cmp_ps(x.v, limit.v, _CMP_GT_OQ))};
}
inline V by_sign(V x, V negative, V positive) {
    return {_mm256_blendv_ps(positive.v, negative.v, x.v)};
}

#else

inline unsigned above(V a, V b) {
    unsigned bits = 0;
    for (std::size_t i = 0; i < V::N; ++i) bits |= static_cast<unsigned>(a.v[i] > b.v[i]) << i;
    return bits;
}
inline unsigned at_least(V a, V b) {
    unsigned bits = 0;
    for (std::size_t i = 0; i < V::N; ++i) bits |= static_cast<unsigned>(a.v[i] >= b.v[i]) << i;
    return bits;
}
inline V keep_above(V value, V x, V limit) {
    return V::each([&](std::size_t i) { return x.v[i] > limit.v[i] ? value.v[i] : 0.0f; });
}
inline V by_sign(V x, V negative, V positive) {
    return V::each(
        [&](std::size_t i) { return std::signbit(x.v[i]) ? negative.v[i] : positive.v[i]; });
}

#endif

}  // namespace octavo::OCTAVO_ISA
