// Passes over one row of logits, and the draw.
//
// Owns: the walks over the vocabulary that sampling consists of, the counter-based noise.
// Does not know: penalties, filters, what is reported. sampling.cpp puts the passes together.
//
// The noise is that of ops/noise.py: SplitMix64 by counter, so that a token's noise depends on the
// key and its id alone. Sums are in double, in an order that depends on the length alone.
#pragma once

#include <cfloat>

#include "../rows.hpp"
#include "compare.hpp"
#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

inline V load_or_lowest(const float* p, std::size_t n) {
    float lanes[V::N];
    for (std::size_t i = 0; i < V::N; ++i) lanes[i] = i < n ? p[i] : -INFINITY;
    return V::load(lanes);
}

// A row is cut into chunks of PEAK_VECTORS vectors; peaks[c * V::N + lane] is the largest of chunk
// c's values in that lane. Returns false for a row with a NaN or +inf.
inline bool peaks(const float* x, std::size_t n, float* peaks) {
    const V lowest = V::set(-FLT_MAX);
    V bad = V::zero();
    for (std::size_t begin = 0; begin < n; begin += PEAK_VECTORS * V::N, peaks += V::N) {
        const std::size_t end = begin + PEAK_VECTORS * V::N < n ? begin + PEAK_VECTORS * V::N : n;
        V top = V::set(-INFINITY);
        std::size_t i = begin;
        const auto take = [&](V a) {
            top = max(top, a);
            bad = fma(max(lowest, a), V::zero(), bad);  // 0 for finite and -inf, else NaN
        };
        for (; i + V::N <= end; i += V::N) take(V::load(x + i));
        if (i < end) take(load_or_lowest(x + i, end - i));
        top.store(peaks);
    }
    return sum(bad) == 0.0f;
}

// The indices of all values >= limit, ascending; returns how many.
inline std::size_t collect(const float* x, std::size_t n, float limit, std::uint32_t* found) {
    const V bound = V::set(limit);
    std::size_t count = 0, i = 0;
    for (; i + V::N <= n; i += V::N)
        for (unsigned bits = at_least(V::load(x + i), bound); bits != 0; bits &= bits - 1)
            found[count++] = static_cast<std::uint32_t>(i) + static_cast<unsigned>(__builtin_ctz(bits));
    for (; i < n; ++i)
        if (x[i] >= limit) found[count++] = static_cast<std::uint32_t>(i);
    return count;
}

inline std::size_t count_above(const float* x, std::size_t n, float limit) {
    const V bound = V::set(limit);
    std::size_t count = 0, i = 0;
    for (; i + V::N <= n; i += V::N)
        count += static_cast<unsigned>(__builtin_popcount(above(V::load(x + i), bound)));
    for (; i < n; ++i) count += x[i] > limit;
    return count;
}

// A sum in double of float vectors.
struct WideSum {
    double lanes[V::N] = {};

    void add(V a) {
        float values[V::N];
        a.store(values);
        for (std::size_t i = 0; i < V::N; ++i) lanes[i] += static_cast<double>(values[i]);
    }
    double total() {
        for (std::size_t half = V::N / 2; half > 0; half /= 2)
            for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
        return lanes[0];
    }
};

// e^((x - best) / temperature): 1 for the best; exactly 0 for -inf, and for what is below e^-87.
inline V weight_of(V x, V best, V temperature) {
    const V t = (x - best) / temperature;
    return keep_above(exp(t), t, V::set(-87.0f));
}

// Stores the weight of every value; returns their sum.
inline double weights(const float* x, std::size_t n, float best, float temperature, float* out) {
    const V b = V::set(best), t = V::set(temperature);
    WideSum total;
    std::size_t i = 0;
    for (; i + V::N <= n; i += V::N) {
        const V w = weight_of(V::load(x + i), b, t);
        w.store(out + i);
        total.add(w);
    }
    if (i < n) {
        const V w = weight_of(load_or_lowest(x + i, n - i), b, t);
        w.store_first(out + i, n - i);
        total.add(w);
    }
    return total.total();
}

// Natural logarithm of a positive, normal number to about an ulp: 2 artanh((m - 1) / (m + 1)) as a
// series, m within [sqrt 1/2, sqrt 2). Our own, so that draws do not hang on the C library's version.
inline double natural_log(double x) {
    std::uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    constexpr std::uint64_t half_root = 0x3fe6a09e667f3bcdull;  // sqrt 1/2
    const std::int64_t shift = (static_cast<std::int64_t>(bits) - static_cast<std::int64_t>(half_root)) >> 52;
    bits -= static_cast<std::uint64_t>(shift) << 52;
    double m;
    std::memcpy(&m, &bits, sizeof m);
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double series = 1.0 / 23.0;
    for (int k = 21; k >= 3; k -= 2) series = series * z + 1.0 / k;
    constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
    const double e = static_cast<double>(shift);
    return e * ln2_high + (2.0 * s + (2.0 * s * z * series + e * ln2_low));
}

// log of the sum of e^(x - best).
inline double log_sum(const float* x, std::size_t n, float best) {
    const V b = V::set(best), one = V::set(1.0f);
    WideSum total;
    std::size_t i = 0;
    for (; i + V::N <= n; i += V::N) total.add(weight_of(V::load(x + i), b, one));
    if (i < n) total.add(weight_of(load_or_lowest(x + i, n - i), b, one));
    return natural_log(total.total());
}

constexpr std::uint64_t GOLDEN = 0x9E3779B97F4A7C15ull;
constexpr std::uint64_t MIX_1 = 0xBF58476D1CE4E5B9ull;
constexpr std::uint64_t MIX_2 = 0x94D049BB133111EBull;

inline std::uint64_t mix64(std::uint64_t z) {
    z = (z ^ (z >> 30)) * MIX_1;
    z = (z ^ (z >> 27)) * MIX_2;
    return z ^ (z >> 31);
}

inline std::uint64_t stream_key(const RaceKey& key) {
    const std::uint64_t first = mix64(GOLDEN + key.seed);
    return mix64(mix64(first + GOLDEN + key.choice) + GOLDEN + key.position);
}

// Standard exponential noise of one token.
inline double exponential(std::uint64_t stream, std::uint32_t id) {
    const std::uint64_t bits = mix64(stream + (std::uint64_t{id} + 1) * GOLDEN) >> 12;
    return -natural_log((static_cast<double>(bits) + 0.5) * 0x1p-52);
}

// For V::N tokens at a time, a lower bound of 2^31 times their noise, as cheap as it can be had: the
// noise is -log(u) > 1 - u, and the 31 upper bits of u are settled before the last step of the mix.
#if defined(__AVX512F__)

class NoiseBounds {
public:
    explicit NoiseBounds(std::uint64_t stream) {
        const __m512i golden = _mm512_set1_epi64(static_cast<long long>(GOLDEN));
        const __m512i start = _mm512_set1_epi64(static_cast<long long>(stream));
        even_ = _mm512_add_epi64(
            start, _mm512_mullo_epi64(golden, _mm512_setr_epi64(1, 2, 5, 6, 9, 10, 13, 14)));
        odd_ = _mm512_add_epi64(even_, _mm512_slli_epi64(golden, 1));
    }

    V next() {
        // The upper halves, in the order of the ids: within 128 bits two of the one, two of the other.
        const __m512i upper = _mm512_castps_si512(_mm512_shuffle_ps(
            _mm512_castsi512_ps(mixed(even_)), _mm512_castsi512_ps(mixed(odd_)), 0xDD));
        const __m512i step = _mm512_set1_epi64(static_cast<long long>(GOLDEN * V::N));
        even_ = _mm512_add_epi64(even_, step);
        odd_ = _mm512_add_epi64(odd_, step);
        const __m512i rest = _mm512_xor_si512(_mm512_srli_epi32(upper, 1), _mm512_set1_epi32(0x7fffffff));
        return {_mm512_cvtepi32_ps(rest)};
    }

private:
    static __m512i mixed(__m512i z) {
        z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 30));
        z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<long long>(MIX_1)));
        z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 27));
        return _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<long long>(MIX_2)));
    }

    __m512i even_, odd_;  // counters of ids 0 1 4 5 8 9 12 13 and 2 3 6 7 10 11 14 15
};

#elif defined(__AVX2__) && defined(__FMA__)

class NoiseBounds {
public:
    explicit NoiseBounds(std::uint64_t stream) {
        const auto counter = [&](std::uint64_t id) {
            return static_cast<long long>(stream + (id + 1) * GOLDEN);
        };
        even_ = _mm256_setr_epi64x(counter(0), counter(1), counter(4), counter(5));
        odd_ = _mm256_setr_epi64x(counter(2), counter(3), counter(6), counter(7));
    }

    V next() {
        // The upper halves, in the order of the ids: within 128 bits two of the one, two of the other.
        const __m256i upper = _mm256_castps_si256(_mm256_shuffle_ps(
            _mm256_castsi256_ps(mixed(even_)), _mm256_castsi256_ps(mixed(odd_)), 0xDD));
        const __m256i step = _mm256_set1_epi64x(static_cast<long long>(GOLDEN * V::N));
        even_ = _mm256_add_epi64(even_, step);
        odd_ = _mm256_add_epi64(odd_, step);
        const __m256i rest = _mm256_xor_si256(_mm256_srli_epi32(upper, 1), _mm256_set1_epi32(0x7fffffff));
        return {_mm256_cvtepi32_ps(rest)};
    }

private:
    static __m256i mixed(__m256i z) {
        z = times(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), MIX_1);
        return times(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), MIX_2);
    }

    // The lower 64 bits of a product, from 32-bit halves.
    static __m256i times(__m256i a, std::uint64_t b) {
        const __m256i low = _mm256_set1_epi64x(static_cast<long long>(b));
        const __m256i high = _mm256_set1_epi64x(static_cast<long long>(b >> 32));
        const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), low),
                                               _mm256_mul_epu32(a, high));
        return _mm256_add_epi64(_mm256_mul_epu32(a, low), _mm256_slli_epi64(cross, 32));
    }

    __m256i even_, odd_;  // counters of ids 0 1 4 5 and 2 3 6 7
};

#else

class NoiseBounds {
public:
    explicit NoiseBounds(std::uint64_t stream) : counter_(stream + GOLDEN) {}

    V next() {
        const std::uint64_t base = counter_;
        counter_ += GOLDEN * V::N;
        return V::each([&](std::size_t i) {
            const std::uint64_t upper = mix64(base + i * GOLDEN) >> 33;
            return static_cast<float>(static_cast<std::int32_t>(0x7fffffff - upper));
        });
    }

private:
    std::uint64_t counter_;
};

#endif

// The fastest so far of an exponential race: noise / weight, ties to the lowest index.
struct Leader {
    double time = INFINITY;
    std::size_t index = 0;

    void meet(std::uint64_t stream, std::uint32_t id, float weight, std::size_t at) {
        if (weight == 0.0f) return;
        const double arrival = exponential(stream, id) / static_cast<double>(weight);
        if (arrival < time || (arrival == time && at < index)) {
            time = arrival;
            index = at;
        }
    }
};

// Draws in proportion to the weights of tokens ids[0 ..< n], or 0 ..< n where `ids` is null, and
// returns the winner's index. `first` is met first: a likely one, for speed.
//
// The logarithm is taken only of the few tokens whose bound is below the leader's time.
inline std::size_t race(const RaceKey& key, const std::uint32_t* ids, const float* weights,
                        std::size_t n, std::size_t first) {
    const std::uint64_t stream = stream_key(key);
    const auto id_of = [&](std::size_t i) {
        return ids != nullptr ? ids[i] : static_cast<std::uint32_t>(i);
    };
    Leader leader;
    leader.meet(stream, id_of(first), weights[first], first);
    std::size_t i = 0;
    if (ids == nullptr) {
        // A little more than the leader's time, so that no rounding in float loses a token.
        const auto reach = [&] { return V::set(static_cast<float>(leader.time * 0x1p31 * 1.000001)); };
        V bound = reach();
        NoiseBounds noise(stream);
        for (; i + V::N <= n; i += V::N) {
            unsigned bits = above(V::load(weights + i) * bound, noise.next());
            if (bits == 0) continue;
            for (; bits != 0; bits &= bits - 1) {
                const std::size_t at = i + static_cast<unsigned>(__builtin_ctz(bits));
                leader.meet(stream, static_cast<std::uint32_t>(at), weights[at], at);
            }
            bound = reach();
        }
    }
    for (; i < n; ++i) leader.meet(stream, id_of(i), weights[i], i);
    return leader.index;
}

}  // namespace octavo::OCTAVO_ISA
