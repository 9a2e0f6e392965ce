// Weights of a softmax, and partial softmaxes merged in order.
//
// Owns: powers of two, tanh, how results over parts of the positions become one.
// Does not know: keys, values, which positions a part has.
//
// Scores are base-2 logarithms: whoever computes them multiplies by LOG2_E, once for each query,
// so that a weight needs no product to find its power of two and loses no bits in it.
#pragma once

#include "../kv_types.hpp"
#include "lanes.hpp"
#include "simd.hpp"

namespace octavo::OCTAVO_ISA {

constexpr float LOG2_E = 1.44269504f;
constexpr float LOWEST = -INFINITY;
constexpr std::size_t MAX_PIECE_VALUES = MAX_PIECE_HEADS * MAX_HEAD_DIM;

// 2^x for x <= 0, to 2e-7 relative; exactly 1 for 0, NaN stays NaN. Below -126 it is 2^-126. Of
// several at once: each waits for its own operations one after another, and the others fill the gaps.
template <int COUNT>
[[gnu::always_inline]] inline void exp2_below_zero(V (&x)[COUNT]) {
    constexpr float FACTORS[] = {9.6715130e-3f, 5.5507336e-2f, 2.4022242e-1f, 6.9314700e-1f, 1.0f};
    V n[COUNT], p[COUNT];
    OCTAVO_UNROLL
    for (int i = 0; i < COUNT; ++i) {
        x[i] = max(V::set(-126.0f), x[i]);  // the second operand where one is NaN
        n[i] = round(x[i]);
    }
    OCTAVO_UNROLL
    for (int i = 0; i < COUNT; ++i) {
        x[i] = x[i] - n[i];
        p[i] = V::set(1.3264727e-3f);
    }
    OCTAVO_UNROLL
    for (int k = 0; k < 5; ++k) {
        OCTAVO_UNROLL
        for (int i = 0; i < COUNT; ++i) p[i] = fma(p[i], x[i], V::set(FACTORS[k]));
    }
    OCTAVO_UNROLL
    for (int i = 0; i < COUNT; ++i) x[i] = scale_by_power(p[i], n[i]);
}

inline V exp2_below_zero(V x) {
    V one[1] = {x};
    exp2_below_zero(one);
    return one[0];
}

inline float exp2_below_zero(float x) {
    float lanes[V::N];
    exp2_below_zero(V::set(x)).store(lanes);
    return lanes[0];
}

// tanh as 1 - 2 / (e^2x + 1) of |x|, its sign put back.
inline V tanh_of(V x) {
    const V size = max(x, V::zero() - x);
    const V e = exp2_below_zero(size * V::set(-2.0f * LOG2_E));
    const V t = (V::set(1.0f) - e) / (V::set(1.0f) + e);
    return copy_sign(t, x);
}

// Row `row` of the piece: its values over the sum of its weights, a sink's weight included. May
// change `values`, which are padded to a multiple of V::N.
inline void write_row(const AttentionPiece& piece, std::size_t row, float* values, float top, float sum) {
    const std::size_t head = row % piece.heads, dims = piece.view.shape.head_dim;
    if (piece.sinks != nullptr) {
        const float score = piece.sinks[head] * LOG2_E;
        const float higher = score > top ? score : top;
        const float before = exp2_below_zero(top - higher);
        for (std::size_t d = 0; d < dims; d += V::N) (V::load(values + d) * V::set(before)).store(values + d);
        sum = sum * before + exp2_below_zero(score - higher);
    }
    float* out = piece.out + row / piece.heads * piece.out_stride + head * dims;
    const V all = V::set(sum);
    std::size_t d = 0;
    for (; d + V::N <= dims; d += V::N) (V::load(values + d) / all).store(out + d);
    if (d < dims) (V::load(values + d) / all).store_first(out + d, dims - d);
}

// Several partial softmaxes of each row, merged one after another.
class Merged {
public:
    Merged(std::size_t rows, std::size_t width) : width_(width) {
        for (std::size_t r = 0; r < rows; ++r) sum_[r] = 0.0f;
    }

    // `sum` is 0 where the row saw nothing: the weight of the largest score is 1.
    void add(std::size_t row, const float* values, float top, float sum) {
        if (sum == 0.0f) return;
        float* kept = values_ + row * width_;
        if (sum_[row] == 0.0f) {
            for (std::size_t d = 0; d < width_; d += V::N) V::load(values + d).store(kept + d);
            top_[row] = top;
            sum_[row] = sum;
            return;
        }
        const float higher = top > top_[row] ? top : top_[row];
        const float before = exp2_below_zero(top_[row] - higher), now = exp2_below_zero(top - higher);
        for (std::size_t d = 0; d < width_; d += V::N)
            (V::load(kept + d) * V::set(before) + V::load(values + d) * V::set(now)).store(kept + d);
        top_[row] = higher;
        sum_[row] = sum_[row] * before + sum * now;
    }

    void write(const AttentionPiece& piece) {
        for (std::size_t row = 0; row < piece.tokens * piece.heads; ++row)
            write_row(piece, row, values_ + row * width_, top_[row], sum_[row]);
    }

private:
    std::size_t width_;
    alignas(64) float values_[MAX_PIECE_VALUES];
    float top_[MAX_PIECE_ROWS];
    float sum_[MAX_PIECE_ROWS];
};

}  // namespace octavo::OCTAVO_ISA
