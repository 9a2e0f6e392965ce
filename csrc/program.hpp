// The ops of a model's step, recorded once and run for every batch.
//
// Owns: the list of ops, and the memory of what passes between them.
// Does not know: Python, models, arithmetic. Weights, norms' vectors and rope tables are the
// caller's, who keeps them for as long as the program lives.
//
// The list is the same for every batch: each value has a row for each token, or for each token
// whose logits are wanted, and a fixed width. So one recording serves all shapes. Values that are
// not needed at the same time share their memory, which grows to the largest batch and stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "buffer.hpp"
#include "code_matrix.hpp"
#include "experts.hpp"
#include "float_weight.hpp"
#include "kv_batch.hpp"
#include "kv_cache.hpp"
#include "pool.hpp"
#include "rows.hpp"

namespace octavo {

// The cosines and sines of positions: (positions, half).
struct RopeView {
    const float* cos;
    const float* sin;
    std::size_t positions, half;
};

// One batch.
struct ProgramInput {
    const std::int64_t* ids;  // one a token of `batch`
    const std::int64_t* wanted;
    std::size_t wanted_count;
    const KvBatch& batch;
    KvCache& cache;
    const std::vector<RopeView>& ropes;
};

struct AttentionPlace {
    std::size_t group, layer, heads, kv_heads, head_dim;
};

class Program {
public:
    using Value = std::size_t;  // an array's number
    static constexpr Value NONE = SIZE_MAX;

    // Recording. Each returns the new value; std::invalid_argument where widths do not fit.
    Value embed(const FloatWeight& table);
    Value embed(const CodeMatrix& table);
    // The rows of `table` at each token's position plus `offset`.
    Value embed_positions(const FloatWeight& table, std::size_t offset);
    Value embed_positions(const CodeMatrix& table, std::size_t offset);
    Value columns(Value x, std::size_t first, std::size_t last);
    Value matrix(Value like, std::size_t width);  // to be filled by `product`s
    void product(Value x, const FloatWeight& weight, Value out, std::size_t column);
    void product(Value x, const std::vector<const CodeMatrix*>& parts, const float* bias, Value out,
                 std::size_t column);
    // `logits` has a router's scores for each row of x.
    Value experts(Value x, Value logits, const Experts& experts);
    // (normed, sum): `total` is x itself where there is no residual. A norm narrower than x is taken of
    // each piece of its width.
    Value norm(Value x, Value residual, const Norm& spec, Value* total);
    Value act(Value x, Activation kind, bool gated);
    Value add(Value x, Value y, float factor);
    Value scale(Value x, float factor);
    Value bound(Value x, float limit, bool smooth);
    // `rope` is an index into ProgramInput::ropes, or NONE: then q is returned as it is.
    Value rope_and_store(Value q, Value k, Value v, const AttentionPlace& at, std::size_t rope,
                         bool interleaved);
    Value attention(Value q, const AttentionPlace& at, float scale, std::size_t window, float softcap,
                    const float* slopes);
    Value logit_rows(Value x);
    void finish(Value result);

    std::size_t width(Value x) const { return values_[x].width; }
    std::size_t values() const { return values_.size(); }
    std::size_t result_width() const { return values_[result_].width; }
    // Bytes that a batch of so many rows needs between ops.
    std::size_t workspace_bytes(std::size_t rows) const { return rows * row_width_ * sizeof(float); }

    // Throws std::invalid_argument where the input does not fit what was recorded, std::bad_alloc.
    // `out` is (wanted_count, result_width()).
    void run(const ProgramInput& input, float* out, Pool& pool);

private:
    struct Array {
        bool wanted;  // a row for each token whose logits are wanted
        std::size_t width;
        std::size_t last = 0;    // the op that reads it last
        std::size_t offset = 0;  // floats before it, times rows
    };
    struct Shown {  // some columns of an array
        std::size_t array, first, width;
    };
    struct Step;
    struct Op {
        std::vector<Value> reads, writes;
        std::function<void(const Step&)> run;
    };

    Value new_value(bool wanted, std::size_t width);
    Value whole(Value x);
    template <class Embed>
    Value embedded_positions(std::size_t rows, std::size_t width, std::size_t offset, Embed embed);
    bool wanted(Value x) const { return arrays_[values_[x].array].wanted; }
    void record(std::vector<Value> reads, std::vector<Value> writes, std::function<void(const Step&)> run);
    void require_place(const AttentionPlace& at);
    void lay_out();
    void check(const ProgramInput& input) const;

    std::vector<Array> arrays_;
    std::vector<Shown> values_;
    std::vector<Op> ops_;
    Value result_ = NONE;
    std::size_t row_width_ = 0;
    std::size_t vocabulary_ = SIZE_MAX;
    std::size_t positions_ = SIZE_MAX;
    std::size_t ropes_ = 0;
    std::vector<AttentionPlace> places_;
    Buffer memory_;
    std::size_t capacity_ = 0;  // rows
};

}  // namespace octavo
