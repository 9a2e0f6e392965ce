// Attention of some tokens' grouped queries over the keys and values of one KV head.
//
// Owns: the order of all sums. Keys go in steps of 64 at fixed positions, an online softmax over
// them; every 512 positions a new partial softmax starts, and partial results are merged in order.
// Does not know: batches, threads, which tokens share a piece.
//
// Whether a token comes alone or with others cannot change its bits: a step that all tokens of the
// piece see whole is computed for all at once, any other for each token by itself, and either way a
// lane's sum takes the same products in the same order. What a token does not see is never
// multiplied, not even by zero: it may be anything, infinities included.
#pragma once

#include "kv_tile.hpp"
#include "lanes.hpp"

namespace octavo::OCTAVO_ISA {

constexpr std::size_t STEP_KEYS = 64;
constexpr std::size_t STEP_TILES = STEP_KEYS / TILE_KEYS;
constexpr int ROWS_AT_ONCE = 6;
constexpr std::size_t MAX_PIECE_VALUES = MAX_PIECE_HEADS * MAX_HEAD_DIM;

constexpr float LOWEST = -INFINITY;

// e^x for x <= 0, as `exp`; NaN stays NaN. Below -87 it is e^-87, about 1e-38.
inline V exp_below_zero(V x) {
    const V bounded = max(V::set(-87.0f), x);  // the second operand where one is NaN
    const V n = round(bounded * V::set(1.44269504f));
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

inline float exp_below_zero(float x) {
    float lanes[V::N];
    exp_below_zero(V::set(x)).store(lanes);
    return lanes[0];
}

// tanh as 1 - 2 / (e^2x + 1) of |x|, its sign put back.
inline V tanh_of(V x) {
    const V size = max(x, V::zero() - x);
    const V e = exp_below_zero(size * V::set(-2.0f));
    const V t = (V::set(1.0f) - e) / (V::set(1.0f) + e);
    return copy_sign(t, x);
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
            for (std::size_t d = 0; d < width_; ++d) kept[d] = values[d];
            top_[row] = top;
            sum_[row] = sum;
            return;
        }
        const float higher = top > top_[row] ? top : top_[row];
        const float before = exp_below_zero(top_[row] - higher), now = exp_below_zero(top - higher);
        for (std::size_t d = 0; d < width_; d += V::N)
            (V::load(kept + d) * V::set(before) + V::load(values + d) * V::set(now)).store(kept + d);
        top_[row] = higher;
        sum_[row] = sum_[row] * before + sum * now;
    }

    void write(const AttentionPiece& piece) {
        for (std::size_t t = 0; t < piece.tokens; ++t)
            for (std::size_t h = 0; h < piece.heads; ++h) {
                const std::size_t row = t * piece.heads + h;
                if (piece.sinks != nullptr) sink(row, piece.sinks[h]);
                const std::size_t dims = piece.view.shape.head_dim;
                const float* kept = values_ + row * width_;
                float* out = piece.out + t * piece.out_stride + h * dims;
                for (std::size_t d = 0; d < dims; ++d) out[d] = kept[d] / sum_[row];
            }
    }

private:
    void sink(std::size_t row, float score) {
        const float higher = score > top_[row] ? score : top_[row];
        const float before = exp_below_zero(top_[row] - higher);
        for (std::size_t d = 0; d < width_; ++d) values_[row * width_ + d] *= before;
        sum_[row] = sum_[row] * before + exp_below_zero(score - higher);
    }

    std::size_t width_;
    alignas(64) float values_[MAX_PIECE_VALUES];
    float top_[MAX_PIECE_ROWS];
    float sum_[MAX_PIECE_ROWS];
};

// One piece, its keys and values of element type E.
template <class E>
class Attention {
public:
    explicit Attention(const AttentionPiece& piece)
        : piece_(piece), width_(piece.view.shape.width), rows_(piece.tokens * piece.heads) {
        const std::size_t dims = piece.view.shape.head_dim;
        for (std::size_t r = 0; r < rows_; ++r) {
            const float* from = piece.query + r / piece.heads * piece.query_stride + r % piece.heads * dims;
            float* to = queries_ + r * width_;
            for (std::size_t d = 0; d < dims; ++d) to[d] = from[d] * piece.scale;
            for (std::size_t d = dims; d < width_; ++d) to[d] = 0.0f;
            E::pack(to, width_);
        }
    }

    // The softmax over positions [split * SPLIT_KEYS, + SPLIT_KEYS) that each token sees.
    void run(std::size_t split) {
        for (std::size_t r = 0; r < rows_; ++r) {
            top_[r] = LOWEST;
            V::zero().store(sums_ + r * V::N);
        }
        for (std::size_t i = 0; i < rows_ * width_; i += V::N) V::zero().store(mixed_ + i);
        const std::size_t last = piece_.position + piece_.tokens - 1;
        const std::size_t begin = larger(split * SPLIT_KEYS, first_seen(piece_.position) / STEP_KEYS * STEP_KEYS);
        const std::size_t end = smaller((split + 1) * SPLIT_KEYS, last + 1);
        for (std::size_t at = begin; at < end; at += STEP_KEYS) {
            // The first token sees the end, the last one the beginning, of what all see.
            if (first_seen(last) <= at && at + STEP_KEYS <= piece_.position + 1) {
                step(at, 0, piece_.tokens, 0, STEP_KEYS);
                continue;
            }
            for (std::size_t t = 0; t < piece_.tokens; ++t) {
                const std::size_t position = piece_.position + t;
                const std::size_t low = larger(first_seen(position), at);
                const std::size_t high = smaller(position + 1, at + STEP_KEYS);
                if (low < high) step(at, t, 1, low - at, high - at);
            }
        }
    }

    void add_to(Merged& merged) const {
        for (std::size_t r = 0; r < rows_; ++r)
            merged.add(r, mixed_ + r * width_, top_[r], sum(V::load(sums_ + r * V::N)));
    }

    void write_partial(float* to) const {
        for (std::size_t r = 0; r < rows_; ++r, to += width_ + 2) {
            for (std::size_t d = 0; d < width_; ++d) to[d] = mixed_[r * width_ + d];
            to[width_] = top_[r];
            to[width_ + 1] = sum(V::load(sums_ + r * V::N));
        }
    }

private:
    static std::size_t larger(std::size_t a, std::size_t b) { return a > b ? a : b; }
    static std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

    std::size_t first_seen(std::size_t position) const {
        return piece_.window != 0 && position >= piece_.window ? position - piece_.window + 1 : 0;
    }

    // Positions [at + low, at + high) for `tokens` tokens, each of which sees them all.
    void step(std::size_t at, std::size_t token, std::size_t tokens, std::size_t low, std::size_t high) {
        const std::size_t row = token * piece_.heads, rows = tokens * piece_.heads;
        const std::size_t first = low / TILE_KEYS, end = (high + TILE_KEYS - 1) / TILE_KEYS;
        const std::uint32_t* keys[STEP_TILES];
        const std::uint32_t* values[STEP_TILES];
        const float* scales[STEP_TILES];
        for (std::size_t i = first; i < end; ++i) {
            const std::uint8_t* tile = tile_at(piece_.view, at + i * TILE_KEYS);
            keys[i] = reinterpret_cast<const std::uint32_t*>(tile);
            values[i] = keys[i] + piece_.view.shape.words;
            scales[i] = reinterpret_cast<const float*>(values[i] + piece_.view.shape.words);
        }
        for_rows(row, rows, [&](auto count, std::size_t r) {
            score<decltype(count)::value>(keys, first, end, r);
        });
        for (std::size_t r = row; r < row + rows; ++r) soften(r, at, first, end, low, high, scales);
        if (low % TILE_KEYS == 0 && high % TILE_KEYS == 0) {
            mix_whole(values + first, end - first, first * TILE_KEYS, 0, TILE_KEYS, row, rows);
            return;
        }
        for (std::size_t i = first; i < end; ++i) {
            const std::size_t begin = i * TILE_KEYS;
            mix_part(values + i, begin, larger(low, begin) - begin,
                     smaller(high, begin + TILE_KEYS) - begin, row, rows);
        }
    }

    template <int COUNT>
    struct Count {
        static constexpr int value = COUNT;
    };

    // Calls body(Count<n>, row) for runs of at most ROWS_AT_ONCE rows, as even as they come.
    template <class Body>
    static void for_rows(std::size_t row, std::size_t rows, Body&& body) {
        for (std::size_t runs = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; runs > 0; --runs) {
            const std::size_t count = (rows + runs - 1) / runs;
            switch (count) {
                case 1: body(Count<1>{}, row); break;
                case 2: body(Count<2>{}, row); break;
                case 3: body(Count<3>{}, row); break;
                case 4: body(Count<4>{}, row); break;
                case 5: body(Count<5>{}, row); break;
                default: body(Count<ROWS_AT_ONCE>{}, row); break;
            }
            row += count;
            rows -= count;
        }
    }

    // Scores of tiles [first, end) of a step, for ROWS rows.
    template <int ROWS>
    void score(const std::uint32_t* const* keys, std::size_t first, std::size_t end, std::size_t row) {
        constexpr int VECTORS = static_cast<int>(TILE_KEYS / V::N);
        constexpr int FIT = REGISTERS / (ROWS * VECTORS);
        constexpr int RUN = FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
        const float* factors = queries_ + row * width_;
        float* out = scores_ + row * STEP_KEYS;
        const std::size_t groups = width_ / E::PER_WORD;
        std::size_t i = first;
        for (; i + RUN <= end; i += RUN)
            lane_dots<E, ROWS, RUN, VECTORS, true>(keys + i, 1, TILE_KEYS, groups, factors, width_,
                                                   out + i * TILE_KEYS, STEP_KEYS);
        for (; i < end; ++i)
            lane_dots<E, ROWS, 1, VECTORS, true>(keys + i, 1, TILE_KEYS, groups, factors, width_,
                                                 out + i * TILE_KEYS, STEP_KEYS);
    }

    // Scores of tiles [first, end) become weights, packed as factors; what is outside [low, high)
    // gets none.
    void soften(std::size_t row, std::size_t at, std::size_t first, std::size_t end, std::size_t low,
                std::size_t high, const float* const* scales) {
        float* s = scores_ + row * STEP_KEYS;
        const std::size_t begin = first * TILE_KEYS, stop = end * TILE_KEYS;
        if constexpr (E::SCALED) scale_scores(s, first, end, scales, 0);
        adjust(s, row, at, begin, stop);
        hide(s, begin, low, high, stop, LOWEST);
        V best = V::set(LOWEST);
        for (std::size_t i = begin; i < stop; i += V::N) best = max(best, V::load(s + i));
        if (any_above(best, V::set(top_[row]))) raise(row, largest(best));
        const V top = V::set(top_[row]);
        V total = V::load(sums_ + row * V::N);
        if (low == begin && high == stop) {
            for (std::size_t i = begin; i < stop; i += V::N) {
                const V weight = exp_below_zero(V::load(s + i) - top);
                weight.store(s + i);
                total = total + weight;
            }
        } else {
            for (std::size_t i = begin; i < stop; i += V::N)
                exp_below_zero(V::load(s + i) - top).store(s + i);
            hide(s, begin, low, high, stop, 0.0f);
            for (std::size_t i = begin; i < stop; i += V::N) total = total + V::load(s + i);
        }
        total.store(sums_ + row * V::N);
        if constexpr (E::SCALED) scale_scores(s, first, end, scales, TILE_KEYS);
        E::pack(s + begin, stop - begin);
    }

    // Times the scales of the tiles' keys (at 0) or values (at TILE_KEYS).
    static void scale_scores(float* s, std::size_t first, std::size_t end, const float* const* scales,
                             std::size_t which) {
        for (std::size_t i = first; i < end; ++i)
            for (std::size_t j = 0; j < TILE_KEYS; j += V::N) {
                float* p = s + i * TILE_KEYS + j;
                (V::load(p) * V::load(scales[i] + which + j)).store(p);
            }
    }

    // Soft-cap and ALiBi.
    void adjust(float* s, std::size_t row, std::size_t at, std::size_t begin, std::size_t stop) const {
        if (piece_.softcap != 0.0f) {
            const V cap = V::set(piece_.softcap);
            for (std::size_t i = begin; i < stop; i += V::N)
                (tanh_of(V::load(s + i) / cap) * cap).store(s + i);
        }
        if (piece_.slopes != nullptr) {
            const float slope = piece_.slopes[row % piece_.heads];
            const std::size_t position = piece_.position + row / piece_.heads;
            for (std::size_t i = begin; i < stop; ++i) {
                const auto distance = static_cast<std::int64_t>(position) - static_cast<std::int64_t>(at + i);
                s[i] -= slope * static_cast<float>(distance);
            }
        }
    }

    static void hide(float* s, std::size_t begin, std::size_t low, std::size_t high, std::size_t stop,
                     float value) {
        for (std::size_t i = begin; i < low; ++i) s[i] = value;
        for (std::size_t i = high; i < stop; ++i) s[i] = value;
    }

    // A new largest score of the row: what was summed so far weighs less.
    void raise(std::size_t row, float top) {
        const V factor = exp_below_zero(V::set(top_[row] - top));
        float* mixed = mixed_ + row * width_;
        for (std::size_t d = 0; d < width_; d += V::N) (V::load(mixed + d) * factor).store(mixed + d);
        float* sums = sums_ + row * V::N;
        (V::load(sums) * factor).store(sums);
        top_[row] = top;
    }

    // Adds the weighted values of positions [from, to) of each of `tiles` tiles, whole words of
    // them. The weights of the first tile begin at `key` of the step.
    void mix_whole(const std::uint32_t* const* tiles, std::size_t count, std::size_t key, std::size_t from,
                   std::size_t to, std::size_t row, std::size_t rows) {
        for_rows(row, rows, [&](auto n, std::size_t r) {
            constexpr int ROWS = decltype(n)::value;
            constexpr int FIT = REGISTERS / ROWS;
            constexpr int MOST = FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
            const float* factors =
                scores_ + r * STEP_KEYS + (key / TILE_KEYS * TILE_KEYS + from) / E::PER_WORD * E::STEPS;
            mix_columns<ROWS, MOST>(tiles, count, from, to, factors, mixed_ + r * width_, 0);
        });
    }

    template <int ROWS, int VECTORS>
    void mix_columns(const std::uint32_t* const* tiles, std::size_t count, std::size_t from, std::size_t to,
                     const float* factors, float* out, std::size_t column) {
        const std::size_t skipped = from / E::PER_WORD * width_;
        for (; column + VECTORS * V::N <= width_; column += VECTORS * V::N) {
            const std::uint32_t* at[STEP_TILES];
            for (std::size_t i = 0; i < count; ++i) at[i] = tiles[i] + skipped + column;
            lane_dots<E, ROWS, 1, VECTORS, false>(at, count, width_, (to - from) / E::PER_WORD, factors,
                                                  STEP_KEYS, out + column, width_);
        }
        if constexpr (VECTORS > 1) {
            if (column < width_) mix_columns<ROWS, VECTORS / 2>(tiles, count, from, to, factors, out, column);
        }
    }

    // The same for positions [from, to) of one tile, where the first and last word may be seen in
    // part: their elements one by one.
    void mix_part(const std::uint32_t* const* tile, std::size_t key, std::size_t from, std::size_t to,
                  std::size_t row, std::size_t rows) {
        constexpr std::size_t WORD = E::PER_WORD;
        std::size_t begin = (from + WORD - 1) / WORD * WORD, end = to / WORD * WORD;
        if (begin > end) begin = end = to;  // both within one word
        mix_elements(*tile, key, from, begin, row, rows);
        if (begin < end) mix_whole(tile, 1, key, begin, end, row, rows);
        mix_elements(*tile, key, end, to, row, rows);
    }

    void mix_elements(const std::uint32_t* tile, std::size_t key, std::size_t from, std::size_t to,
                      std::size_t row, std::size_t rows) {
        for (std::size_t i = from; i < to; ++i)
            for (std::size_t r = row; r < row + rows; ++r) {
                const V weight = V::set(E::factor(scores_ + r * STEP_KEYS, key + i));
                float* out = mixed_ + r * width_;
                for (std::size_t d = 0; d < width_; d += V::N) {
                    const Words words = Words::load(tile + i / E::PER_WORD * width_ + d);
                    fma(E::element(words, i % E::PER_WORD), weight, V::load(out + d)).store(out + d);
                }
            }
    }

    const AttentionPiece& piece_;
    std::size_t width_;
    std::size_t rows_;
    alignas(64) float queries_[MAX_PIECE_VALUES];
    alignas(64) float mixed_[MAX_PIECE_VALUES];
    alignas(64) float scores_[MAX_PIECE_ROWS * STEP_KEYS];
    alignas(64) float sums_[MAX_PIECE_ROWS * V::N];
    float top_[MAX_PIECE_ROWS];
};

template <class E>
void attend_typed(const AttentionPiece& piece) {
    Attention<E> attention(piece);
    if (piece.partial != nullptr) {
        attention.run(piece.first_split);
        attention.write_partial(piece.partial);
        return;
    }
    Merged merged(piece.tokens * piece.heads, piece.view.shape.width);
    for (std::size_t split = piece.first_split; split < piece.end_split; ++split) {
        attention.run(split);
        attention.add_to(merged);
    }
    merged.write(piece);
}

inline void attend(const AttentionPiece& piece) {
    switch (piece.view.shape.type) {
        case KvType::f32: return attend_typed<F32>(piece);
        case KvType::bf16: return attend_typed<Bf16>(piece);
        case KvType::int8: return attend_typed<Int8>(piece);
    }
}

// Merges the partial results of splits [first_split, end_split), which lie one after another.
inline void merge_splits(const AttentionPiece& piece) {
    const std::size_t rows = piece.tokens * piece.heads, width = piece.view.shape.width;
    Merged merged(rows, width);
    const float* from = piece.partial;
    for (std::size_t split = piece.first_split; split < piece.end_split; ++split)
        for (std::size_t r = 0; r < rows; ++r, from += width + 2)
            merged.add(r, from, from[width], from[width + 1]);
    merged.write(piece);
}

}  // namespace octavo::OCTAVO_ISA
