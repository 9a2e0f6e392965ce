// Attention of some tokens' grouped queries over the keys and values of one KV head.
//
// Owns: the order of all sums. Keys go in steps of 64 at fixed positions, an online softmax over
// them; every 512 positions a new partial softmax starts, and partial results are merged in order.
// Does not know: batches, threads, which tokens share a piece.
//
// Whether a token comes alone or with others cannot change its bits: rows of queries are computed a
// few at a time, and however many there are a lane's sum takes the same products in the same order.
// Scores of keys that a row does not see are computed with those that its neighbours see, and then
// replaced: their weight is an exact zero. Values that a row does not see are never multiplied, not
// even by zero, for they may be anything, infinities included: those that all rows see are added for
// all at once, the few others row by row.
#pragma once

#include "kv_fetch.hpp"
#include "lanes.hpp"
#include "softmax.hpp"

namespace octavo::OCTAVO_ISA {

constexpr int ROWS_AT_ONCE = 6;
constexpr int STEP_COLUMNS = STEP_KEYS / V::N;
constexpr std::size_t TILE_COLUMNS = TILE_KEYS / V::N;
constexpr std::size_t TOGETHER = 4;  // vectors of weights

// One piece, its keys and values of element type E. With few rows the memory is what holds it up,
// and the next step's tiles are asked for meanwhile (FEW); with many they are read far less often.
template <class E, bool FEW>
class Attention {
public:
    explicit Attention(const AttentionPiece& piece)
        : piece_(piece), width_(piece.view.shape.width), rows_(piece.tokens * piece.heads),
          last_(piece.position + piece.tokens - 1), end_(end_of(piece)) {
        fetch_.aim(piece, begin_of(piece, piece.first_split));
        const std::size_t dims = piece.view.shape.head_dim;
        // Scores are base-2 logarithms; a soft-cap comes before that.
        const V scale = V::set(piece.softcap != 0.0f ? piece.scale : piece.scale * LOG2_E);
        for (std::size_t r = 0; r < rows_; ++r) {
            const float* from = piece.query + r / piece.heads * piece.query_stride + r % piece.heads * dims;
            float* to = queries_ + r * width_;
            std::size_t d = 0;
            for (; d + V::N <= dims; d += V::N) (V::load(from + d) * scale).store(to + d);
            if (d < dims) (V::load_first(from + d, dims - d) * scale).store(to + d);
            for (d += d < dims ? V::N : 0; d < width_; d += V::N) V::zero().store(to + d);
            E::pack(to, 0, width_);
        }
    }

    // The softmax over positions [split * SPLIT_KEYS, + SPLIT_KEYS) that each token sees.
    void run(std::size_t split) {
        for (std::size_t r = 0; r < rows_; ++r) {
            top_[r] = LOWEST;
            V::zero().store(sums_ + r * V::N);
        }
        for (std::size_t i = 0; i < rows_ * width_; i += V::N) V::zero().store(mixed_ + i);
        const std::size_t end = smaller((split + 1) * SPLIT_KEYS, last_ + 1);
        for (std::size_t at = begin_of(piece_, split); at < end; at += STEP_KEYS) step(at);
    }

    void add_to(Merged& merged) const {
        for (std::size_t r = 0; r < rows_; ++r)
            merged.add(r, mixed_ + r * width_, top_[r], sum(V::load(sums_ + r * V::N)));
    }

    // Where there is one split only.
    void write() {
        for (std::size_t r = 0; r < rows_; ++r)
            write_row(piece_, r, mixed_ + r * width_, top_[r], sum(V::load(sums_ + r * V::N)));
    }

    void write_partial(float* to) const {
        for (std::size_t r = 0; r < rows_; ++r, to += width_ + 2) {
            for (std::size_t d = 0; d < width_; ++d) to[d] = mixed_[r * width_ + d];
            to[width_] = top_[r];
            to[width_ + 1] = sum(V::load(sums_ + r * V::N));
        }
    }

private:
    // Keys [low, high) of a step, counted from its first.
    struct Range {
        std::size_t low, high;
    };

    static std::size_t larger(std::size_t a, std::size_t b) { return a > b ? a : b; }
    static std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

    static std::size_t first_seen(const AttentionPiece& piece, std::size_t position) {
        return piece.window != 0 && position >= piece.window ? position - piece.window + 1 : 0;
    }

    // Where the first step of a split begins.
    static std::size_t begin_of(const AttentionPiece& piece, std::size_t split) {
        return larger(split * SPLIT_KEYS, first_seen(piece, piece.position) / STEP_KEYS * STEP_KEYS);
    }

    static std::size_t end_of(const AttentionPiece& piece) {
        return smaller(piece.end_split * SPLIT_KEYS, piece.position + piece.tokens);
    }

    // The tiles aimed at before become those of this step, and the next ones are aimed at.
    void turn_tiles(std::size_t next) {
        const std::size_t words = piece_.view.shape.words;
        for (std::size_t i = 0; i < STEP_TILES; ++i) {
            keys_[i] = reinterpret_cast<const std::uint32_t*>(fetch_.tile(i));
            values_[i] = keys_[i] + words;
            if constexpr (E::SCALED) scales_[i] = reinterpret_cast<const float*>(values_[i] + words);
        }
        if (next < end_) fetch_.aim(piece_, next);
        else if (piece_.next != nullptr) fetch_.aim(*piece_.next, begin_of(*piece_.next, piece_.next->first_split));
    }

    Range seen(std::size_t row, std::size_t at) const {
        const std::size_t position = piece_.position + row / piece_.heads;
        const std::size_t low = larger(first_seen(piece_, position), at);
        const std::size_t high = smaller(position + 1, at + STEP_KEYS);
        return low < high ? Range{low - at, high - at} : Range{0, 0};
    }

    void step(std::size_t at) {
        turn_tiles(at + STEP_KEYS);
        // The first token sees the end, the last one the beginning, of what all see.
        const bool whole = first_seen(piece_, last_) <= at && at + STEP_KEYS <= piece_.position + 1;
        for_rows([&](auto count, std::size_t row) {
            if (whole) whole_step<decltype(count)::value>(at, row);
            else part_step<decltype(count)::value>(at, row);
        });
    }

    template <int ROWS>
    void whole_step(std::size_t at, std::size_t row) {
        score<ROWS, columns_for(ROWS, STEP_COLUMNS)>(0, STEP_COLUMNS, row);
        // By turns, so that no row waits for its own largest score.
        for (int r = 0; r < ROWS; ++r) {
            prepare(row + r, scores_ + r * STEP_KEYS, at, 0, STEP_KEYS);
            raise(row + r, scores_ + r * STEP_KEYS, 0, STEP_KEYS);
        }
        for (int r = 0; r < ROWS; ++r) soften(row + r, scores_ + r * STEP_KEYS);
        mix<ROWS>(0, STEP_KEYS, row, scores_);
    }

    // A step that not all tokens see whole.
    template <int ROWS>
    void part_step(std::size_t at, std::size_t row) {
        Range range[ROWS];
        std::size_t low = STEP_KEYS, high = 0;
        Range all{0, STEP_KEYS};
        for (int r = 0; r < ROWS; ++r) {
            range[r] = seen(row + r, at);
            if (range[r].high == 0) {  // nothing
                all.high = 0;
                continue;
            }
            low = smaller(low, range[r].low);
            high = larger(high, range[r].high);
            all = {larger(all.low, range[r].low), smaller(all.high, range[r].high)};
        }
        if (high == 0) return;
        const std::size_t first = low / TILE_KEYS, end = (high + TILE_KEYS - 1) / TILE_KEYS;
        score<ROWS, columns_for(ROWS, STEP_COLUMNS)>(first * TILE_COLUMNS, end * TILE_COLUMNS, row);
        for (int r = 0; r < ROWS; ++r)
            if (range[r].high != 0)
                soften_part(row + r, at, first * TILE_KEYS, end * TILE_KEYS, range[r], scores_ + r * STEP_KEYS);
        all = {round_up(all.low, E::PER_WORD), all.high / E::PER_WORD * E::PER_WORD};
        if (all.low >= all.high) {
            for (int r = 0; r < ROWS; ++r) mix_row(range[r].low, range[r].high, row + r, r);
            return;
        }
        for (int r = 0; r < ROWS; ++r) mix_row(range[r].low, all.low, row + r, r);
        mix<ROWS>(all.low, all.high, row, scores_);
        for (int r = 0; r < ROWS; ++r) mix_row(all.high, range[r].high, row + r, r);
    }

    static std::size_t round_up(std::size_t x, std::size_t to) { return (x + to - 1) / to * to; }

    template <int COUNT>
    struct Count {
        static constexpr int value = COUNT;
    };

    // Calls body(Count<n>, row) for runs of at most ROWS_AT_ONCE rows, as even as they come.
    template <class Body>
    void for_rows(Body&& body) {
        std::size_t row = 0, rows = rows_;
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

    // Lines to ask for with each word: the products of a step have fewer words with one row.
    template <int ROWS>
    static constexpr int LINES = !FEW ? 0 : ROWS == 1 ? 4 : 2;

    template <int ROWS>
    const std::uint8_t* ahead(std::size_t words) {
        return FEW ? fetch_.take(words * LINES<ROWS> * LINE) : nullptr;
    }

    // Scores of columns [column, end) of a step, V::N keys each, for ROWS rows.
    template <int ROWS, int COLUMNS>
    void score(std::size_t column, std::size_t end, std::size_t row) {
        const float* factors = queries_ + row * width_;
        const std::size_t words = width_ / E::PER_WORD;
        for (; column + COLUMNS <= end; column += COLUMNS) {
            const std::uint32_t* at[COLUMNS];
            for (std::size_t c = 0; c < COLUMNS; ++c) {
                const std::size_t key = (column + c) * V::N;
                at[c] = keys_[key / TILE_KEYS] + key % TILE_KEYS;
            }
            lane_dots<E, ROWS, COLUMNS, 1, true, LINES<ROWS>>(at, 1, TILE_KEYS, words, factors, width_,
                                                              scores_ + column * V::N, STEP_KEYS, ahead<ROWS>(words));
        }
        if constexpr (COLUMNS > 1) {
            if (column < end) score<ROWS, fewer(COLUMNS)>(column, end, row);
        }
    }

    // The columns to go on with where less than `columns` are left.
    static constexpr int fewer(int columns) { return columns > 4 ? 4 : columns - 1; }

    // A whole step's scores become weights, packed as factors.
    void soften(std::size_t row, float* s) {
        const V top = V::set(top_[row]);
        V total = V::load(sums_ + row * V::N);
        for (std::size_t i = 0; i < STEP_KEYS; i += TOGETHER * V::N) {
            V weights[TOGETHER];
            for (std::size_t j = 0; j < TOGETHER; ++j) weights[j] = V::load(s + i + j * V::N) - top;
            exp2_below_zero(weights);
            for (std::size_t j = 0; j < TOGETHER; ++j) {
                weights[j].store(s + i + j * V::N);
                total = total + weights[j];
            }
        }
        total.store(sums_ + row * V::N);
        finish(s, 0, STEP_KEYS);
    }

    // The same where the row sees only `range`: the other weights are zero.
    void soften_part(std::size_t row, std::size_t at, std::size_t begin, std::size_t end, Range range, float* s) {
        prepare(row, s, at, begin, end);
        hide(s, begin, range, end, LOWEST);
        raise(row, s, begin, end);
        const V top = V::set(top_[row]);
        for (std::size_t i = begin; i < end; i += V::N) exp2_below_zero(V::load(s + i) - top).store(s + i);
        hide(s, begin, range, end, 0.0f);
        V total = V::load(sums_ + row * V::N);
        for (std::size_t i = begin; i < end; i += V::N) total = total + V::load(s + i);
        total.store(sums_ + row * V::N);
        finish(s, begin, end);
    }

    void prepare(std::size_t row, float* s, std::size_t at, std::size_t begin, std::size_t end) const {
        if constexpr (E::SCALED) scale_scores(s, begin, end, 0);
        if (piece_.softcap != 0.0f || piece_.slopes != nullptr) adjust(s, row, at, begin, end);
    }

    void finish(float* s, std::size_t begin, std::size_t end) const {
        if constexpr (E::SCALED) scale_scores(s, begin, end, TILE_KEYS);
        E::pack(s, begin, end);
    }

    // Times the scales of the tiles' keys (at 0) or values (at TILE_KEYS).
    void scale_scores(float* s, std::size_t begin, std::size_t end, std::size_t which) const {
        for (std::size_t i = begin; i < end; i += V::N) {
            const float* scales = scales_[i / TILE_KEYS] + which + i % TILE_KEYS;
            (V::load(s + i) * V::load(scales)).store(s + i);
        }
    }

    // Soft-cap and ALiBi.
    void adjust(float* s, std::size_t row, std::size_t at, std::size_t begin, std::size_t end) const {
        if (piece_.softcap != 0.0f) {
            const V cap = V::set(piece_.softcap), to = V::set(piece_.softcap * LOG2_E);
            for (std::size_t i = begin; i < end; i += V::N) (tanh_of(V::load(s + i) / cap) * to).store(s + i);
        }
        if (piece_.slopes != nullptr) {
            const float slope = piece_.slopes[row % piece_.heads] * LOG2_E;
            const std::size_t position = piece_.position + row / piece_.heads;
            for (std::size_t i = begin; i < end; ++i) {
                const auto distance = static_cast<std::int64_t>(position) - static_cast<std::int64_t>(at + i);
                s[i] -= slope * static_cast<float>(distance);
            }
        }
    }

    static void hide(float* s, std::size_t begin, Range range, std::size_t end, float value) {
        for (std::size_t i = begin; i < range.low; ++i) s[i] = value;
        for (std::size_t i = range.high; i < end; ++i) s[i] = value;
    }

    // With a new largest score of the row, what was summed so far weighs less.
    void raise(std::size_t row, const float* s, std::size_t begin, std::size_t end) {
        V best = V::set(LOWEST);
        for (std::size_t i = begin; i < end; i += V::N) best = max(best, V::load(s + i));
        if (!any_above(best, V::set(top_[row]))) return;
        const float top = largest(best);
        const V factor = exp2_below_zero(V::set(top_[row] - top));
        float* mixed = mixed_ + row * width_;
        for (std::size_t d = 0; d < width_; d += V::N) (V::load(mixed + d) * factor).store(mixed + d);
        float* sums = sums_ + row * V::N;
        (V::load(sums) * factor).store(sums);
        top_[row] = top;
    }

    // Adds the weighted values of keys [low, high) of the step, whole words of them. `weights` are
    // the first row's of the step.
    template <int ROWS>
    void mix(std::size_t low, std::size_t high, std::size_t row, const float* weights) {
        const std::size_t first = round_up(low, TILE_KEYS), end = high / TILE_KEYS * TILE_KEYS;
        if (low < first) mix_tiles<ROWS>(low, smaller(first, high), row, weights);
        if (first < end) mix_tiles<ROWS>(first, end, row, weights);
        if (first <= end && end < high) mix_tiles<ROWS>(end, high, row, weights);
    }

    // The same of several whole tiles, or within one.
    template <int ROWS>
    void mix_tiles(std::size_t low, std::size_t high, std::size_t row, const float* weights) {
        const std::size_t first = low / TILE_KEYS, count = (high - low + TILE_KEYS - 1) / TILE_KEYS;
        const std::size_t words = (high - low) / count / E::PER_WORD;
        const std::uint32_t* tiles[STEP_TILES];
        for (std::size_t i = 0; i < count; ++i)
            tiles[i] = values_[first + i] + low % TILE_KEYS / E::PER_WORD * width_;
        mix_columns<ROWS, columns_for(ROWS, 8)>(tiles, count, words, row, weights + low / E::PER_WORD * E::STEPS, 0);
    }

    // `words` words of each of `count` tiles, from column `column` on.
    template <int ROWS, int COLUMNS>
    void mix_columns(const std::uint32_t* const* tiles, std::size_t count, std::size_t words, std::size_t row,
                     const float* weights, std::size_t column) {
        float* out = mixed_ + row * width_;
        for (; column + COLUMNS * V::N <= width_; column += COLUMNS * V::N) {
            const std::uint32_t* at[STEP_TILES];
            for (std::size_t i = 0; i < count; ++i) at[i] = tiles[i] + column;
            lane_dots<E, ROWS, 1, COLUMNS, false, LINES<ROWS>>(at, count, width_, words, weights, STEP_KEYS,
                                                               out + column, width_, ahead<ROWS>(count * words));
        }
        if constexpr (COLUMNS > 1) {
            if (column < width_) mix_columns<ROWS, fewer(COLUMNS)>(tiles, count, words, row, weights, column);
        }
    }

    // The weighted values of any keys [low, high) of the step for row `which` of those computed now.
    // A word that the row sees whole must be added as `mix` does.
    void mix_row(std::size_t low, std::size_t high, std::size_t row, int which) {
        const float* weights = scores_ + static_cast<std::size_t>(which) * STEP_KEYS;
        if constexpr (E::STEPS != E::PER_WORD) {
            const std::size_t first = round_up(low, E::PER_WORD), end = high / E::PER_WORD * E::PER_WORD;
            if (first < end) {
                mix_elements(low, first, row, weights);
                mix<1>(first, end, row, weights);
                mix_elements(end, high, row, weights);
                return;
            }
        }
        mix_elements(low, high, row, weights);
    }

    void mix_elements(std::size_t low, std::size_t high, std::size_t row, const float* weights) {
        float* out = mixed_ + row * width_;
        for (std::size_t i = low; i < high; ++i) {
            const V weight = V::set(E::factor(weights, i));
            const std::uint32_t* words = values_[i / TILE_KEYS] + i % TILE_KEYS / E::PER_WORD * width_;
            for (std::size_t d = 0; d < width_; d += V::N)
                fma(E::element(Words::load(words + d), i % E::PER_WORD), weight, V::load(out + d)).store(out + d);
        }
    }

    const AttentionPiece& piece_;
    std::size_t width_;
    std::size_t rows_;
    std::size_t last_;
    std::size_t end_;
    const std::uint32_t* keys_[STEP_TILES];
    const std::uint32_t* values_[STEP_TILES];
    const float* scales_[STEP_TILES];
    Fetch fetch_;
    alignas(64) float scores_[ROWS_AT_ONCE * STEP_KEYS];
    alignas(64) float queries_[MAX_PIECE_VALUES];
    alignas(64) float mixed_[MAX_PIECE_VALUES];
    alignas(64) float sums_[MAX_PIECE_ROWS * V::N];
    float top_[MAX_PIECE_ROWS];
};

template <class E, bool FEW>
void attend_rows(const AttentionPiece& piece) {
    Attention<E, FEW> attention(piece);
    if (piece.partial != nullptr) {
        attention.run(piece.first_split);
        attention.write_partial(piece.partial);
        return;
    }
    if (piece.end_split - piece.first_split == 1) {
        attention.run(piece.first_split);
        attention.write();
        return;
    }
    Merged merged(piece.tokens * piece.heads, piece.view.shape.width);
    for (std::size_t split = piece.first_split; split < piece.end_split; ++split) {
        attention.run(split);
        attention.add_to(merged);
    }
    merged.write(piece);
}

template <class E>
void attend_typed(const AttentionPiece& piece) {
    if (piece.tokens * piece.heads <= ROWS_AT_ONCE) attend_rows<E, true>(piece);
    else attend_rows<E, false>(piece);
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
