#include "program.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "attention.hpp"
#include "checks.hpp"
#include "code_product.hpp"
#include "rope.hpp"
#include "row_ops.hpp"

namespace octavo {

namespace {

// Rows are added to the workspace so many at a time; and arrays begin at a cache line.
constexpr std::size_t ROWS = 64;
constexpr std::size_t LINE = 16;

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

// What an op sees of a batch.
struct Program::Step {
    const Program& program;
    const ProgramInput& input;
    Pool& pool;
    float* memory;
    std::size_t capacity;

    std::size_t rows(Value x) const { return program.wanted(x) ? input.wanted_count : input.batch.tokens(); }
    float* at(Value x) const {
        const Shown& shown = program.values_[x];
        return memory + program.arrays_[shown.array].offset * capacity + shown.first;
    }
    std::size_t stride(Value x) const { return program.arrays_[program.values_[x].array].width; }
};

Program::Value Program::new_value(bool wanted, std::size_t width) {
    require(result_ == NONE, "the program is finished");
    arrays_.push_back({wanted, width});
    values_.push_back({arrays_.size() - 1, 0, width});
    return values_.size() - 1;
}

void Program::record(std::vector<Value> reads, std::vector<Value> writes, std::function<void(const Step&)> run) {
    ops_.push_back({std::move(reads), std::move(writes), std::move(run)});
}

// The value itself, or a copy of it where its rows are apart.
Program::Value Program::whole(Value x) {
    if (values_[x].width == arrays_[values_[x].array].width) return x;
    const Value out = new_value(wanted(x), width(x));
    record({x}, {out}, [x, out](const Step& step) {
        const std::size_t width = step.program.width(x);
        for (std::size_t r = 0; r < step.rows(x); ++r)
            std::memcpy(step.at(out) + r * width, step.at(x) + r * step.stride(x), width * sizeof(float));
    });
    return out;
}

Program::Value Program::embed(const FloatWeight& table) {
    const Value out = new_value(false, table.inputs());
    vocabulary_ = std::min(vocabulary_, table.outputs());
    record({}, {out}, [&table, out](const Step& step) {
        table.embed(step.input.ids, step.rows(out), step.at(out), step.pool);
    });
    return out;
}

Program::Value Program::embed(const CodeMatrix& table) {
    const Value out = new_value(false, table.inputs());
    vocabulary_ = std::min(vocabulary_, table.outputs());
    record({}, {out}, [&table, out](const Step& step) {
        embed_codes(table, step.input.ids, step.rows(out), step.at(out), step.pool);
    });
    return out;
}

template <class Embed>
Program::Value Program::embedded_positions(std::size_t rows, std::size_t width, std::size_t offset, Embed embed) {
    require(offset < rows, "an offset of " + text(offset) + " in a table of " + text(rows) + " positions");
    const Value out = new_value(false, width);
    positions_ = std::min(positions_, rows - offset);
    record({}, {out}, [out, offset, embed](const Step& step) {
        const KvBatch& batch = step.input.batch;
        std::vector<std::int64_t> ids(batch.tokens());
        for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int64_t>(batch.position(t) + offset);
        embed(ids.data(), ids.size(), step.at(out), step.pool);
    });
    return out;
}

Program::Value Program::embed_positions(const FloatWeight& table, std::size_t offset) {
    return embedded_positions(table.outputs(), table.inputs(), offset, [&table](auto&&... rest) { table.embed(rest...); });
}

Program::Value Program::embed_positions(const CodeMatrix& table, std::size_t offset) {
    const auto embed = [&table](const std::int64_t* ids, std::size_t count, float* out, Pool& pool) {
        embed_codes(table, ids, count, out, pool);
    };
    return embedded_positions(table.outputs(), table.inputs(), offset, embed);
}

Program::Value Program::columns(Value x, std::size_t first, std::size_t last) {
    require(x < values_.size() && first < last && last <= width(x), "columns outside of a value");
    values_.push_back({values_[x].array, values_[x].first + first, last - first});
    return values_.size() - 1;
}

Program::Value Program::matrix(Value like, std::size_t width) { return new_value(wanted(like), width); }

void Program::product(Value x, const FloatWeight& weight, Value out, std::size_t column) {
    x = whole(x);
    require(width(x) == weight.inputs(), text(width(x)) + " values for " + text(weight.inputs()) + " inputs");
    require(column + weight.outputs() <= width(out), "a product beyond its matrix");
    record({x}, {out}, [x, &weight, out, column](const Step& step) {
        weight.multiply(step.at(x), step.rows(x), step.at(out) + column, step.stride(out), step.pool);
    });
}

void Program::product(Value x, const std::vector<const CodeMatrix*>& parts, const float* bias, Value out,
                      std::size_t column) {
    x = whole(x);
    std::size_t outputs = 0;
    for (const CodeMatrix* part : parts) {
        require(width(x) == part->inputs(), text(width(x)) + " values for " + text(part->inputs()) + " inputs");
        outputs += part->outputs();
    }
    require(column + outputs <= width(out), "a product beyond its matrix");
    record({x}, {out}, [x, parts, bias, out, column](const Step& step) {
        multiply_codes(step.at(x), step.rows(x), parts, bias, step.at(out) + column, step.stride(out), step.pool);
    });
}

Program::Value Program::experts(Value x, Value logits, const Experts& experts) {
    x = whole(x);
    logits = whole(logits);
    experts.check(width(x), width(logits));
    require(wanted(x) == wanted(logits), "a router's scores for other rows");
    const Value out = new_value(wanted(x), width(x)), scratch = new_value(wanted(x), experts.scratch_width());
    record({x, logits}, {out, scratch}, [x, logits, &experts, out, scratch](const Step& step) {
        experts.run(step.at(x), step.at(logits), step.rows(x), step.at(out), step.at(scratch), step.pool);
    });
    return out;
}

Program::Value Program::norm(Value x, Value residual, const Norm& spec, Value* total) {
    x = whole(x);
    require(spec.width > 0 && width(x) % spec.width == 0,
            "a norm of " + text(spec.width) + " for " + text(width(x)) + " values");
    const std::size_t pieces = width(x) / spec.width;
    const Value out = new_value(wanted(x), width(x));
    *total = x;
    if (residual == NONE) {
        record({x}, {out}, [x, spec, pieces, out](const Step& step) {
            norm_rows(spec, step.at(x), nullptr, nullptr, step.at(out), step.rows(x) * pieces, step.pool);
        });
        return out;
    }
    residual = whole(residual);
    require(width(residual) == width(x) && wanted(residual) == wanted(x), "a residual of another shape");
    const Value sum = *total = new_value(wanted(x), width(x));
    record({x, residual}, {out, sum}, [x, residual, spec, pieces, sum, out](const Step& step) {
        norm_rows(spec, step.at(x), step.at(residual), step.at(sum), step.at(out), step.rows(x) * pieces, step.pool);
    });
    return out;
}

Program::Value Program::act(Value x, Activation kind, bool gated) {
    x = whole(x);
    require(!gated || width(x) % 2 == 0, "a gated activation of " + text(width(x)) + " values");
    const Value out = new_value(wanted(x), gated ? width(x) / 2 : width(x));
    record({x}, {out}, [x, kind, gated, out](const Step& step) {
        act_rows(kind, gated, step.at(x), step.at(out), step.rows(x), step.stride(out), step.pool);
    });
    return out;
}

Program::Value Program::add(Value x, Value y, float factor) {
    x = whole(x);
    y = whole(y);
    require(width(x) == width(y) && wanted(x) == wanted(y), "a sum of different shapes");
    const Value out = new_value(wanted(x), width(x));
    record({x, y}, {out}, [x, y, factor, out](const Step& step) {
        add_values(step.at(x), step.at(y), factor, step.at(out), step.rows(x) * step.stride(x), step.pool);
    });
    return out;
}

Program::Value Program::scale(Value x, float factor) {
    x = whole(x);
    const Value out = new_value(wanted(x), width(x));
    record({x}, {out}, [x, factor, out](const Step& step) {
        scale_values(step.at(x), factor, step.at(out), step.rows(x) * step.stride(x), step.pool);
    });
    return out;
}

Program::Value Program::bound(Value x, float limit, bool smooth) {
    x = whole(x);
    const Value out = new_value(wanted(x), width(x));
    record({x}, {out}, [x, limit, smooth, out](const Step& step) {
        bound_values(smooth, step.at(x), limit, step.at(out), step.rows(x) * step.stride(x), step.pool);
    });
    return out;
}

void Program::require_place(const AttentionPlace& at) {
    require(at.kv_heads > 0 && at.heads > 0 && at.heads % at.kv_heads == 0 && at.head_dim > 0,
            text(at.heads) + " heads for " + text(at.kv_heads) + " KV heads");
    places_.push_back(at);
}

Program::Value Program::rope_and_store(Value q, Value k, Value v, const AttentionPlace& at, std::size_t rope,
                                       bool interleaved) {
    require_place(at);
    require(width(q) == at.heads * at.head_dim && width(k) == at.kv_heads * at.head_dim &&
                width(v) == at.kv_heads * at.head_dim,
            "queries, keys or values that do not fit their heads");
    require(!wanted(q) && !wanted(k) && !wanted(v), "keys of some tokens only");
    const Value out = rope == NONE ? q : new_value(false, width(q));
    if (rope != NONE) ropes_ = std::max(ropes_, rope + 1);
    const auto run = [=](const Step& step) {
        const RopeView view = rope == NONE ? RopeView{} : step.input.ropes[rope];
        const RopeCall call{step.at(q),     step.at(k),     step.at(v),
                            step.stride(q), step.stride(k), step.stride(v),
                            rope == NONE ? nullptr : step.at(out),
                            view.cos,       view.sin,       view.half,
                            interleaved,    at.heads,       at.group,
                            at.layer};
        octavo::rope_and_store(call, step.input.cache, step.input.batch, step.pool);
    };
    record({q, k, v}, rope == NONE ? std::vector<Value>{} : std::vector<Value>{out}, run);
    return out;
}

Program::Value Program::attention(Value q, const AttentionPlace& at, float scale, std::size_t window,
                                  float softcap, const float* slopes) {
    require_place(at);
    require(!wanted(q) && width(q) == at.heads * at.head_dim, "queries that do not fit their heads");
    const Value out = new_value(false, width(q));
    record({q}, {out}, [=](const Step& step) {
        const AttentionCall call{step.at(q), step.stride(q), step.at(out), at.heads, at.group, at.layer,
                                 scale,      softcap,        window,       slopes,   nullptr};
        attend_batch(call, step.input.cache, step.input.batch, step.pool);
    });
    return out;
}

Program::Value Program::logit_rows(Value x) {
    x = whole(x);
    require(!wanted(x), "rows were chosen already");
    const Value out = new_value(true, width(x));
    record({x}, {out}, [x, out](const Step& step) {
        const std::size_t width = step.stride(x);
        for (std::size_t r = 0; r < step.input.wanted_count; ++r)
            std::memcpy(step.at(out) + r * width, step.at(x) + static_cast<std::size_t>(step.input.wanted[r]) * width,
                        width * sizeof(float));
    });
    return out;
}

void Program::finish(Value result) {
    require(result_ == NONE, "the program is finished");
    result = whole(result);
    require(wanted(result), "a program gives rows whose logits are wanted");
    result_ = result;
    lay_out();
}

// Gives each array a place that nothing else has between the op that writes it first and the one
// that reads it last.
void Program::lay_out() {
    for (std::size_t i = 0; i < ops_.size(); ++i)
        for (const Value x : ops_[i].reads) arrays_[values_[x].array].last = i;
    arrays_[values_[result_].array].last = ops_.size();
    struct Place {
        std::size_t offset, width, free_from;
    };
    std::vector<Place> places;
    std::vector<bool> placed(arrays_.size(), false);
    for (std::size_t i = 0; i < ops_.size(); ++i)
        for (const Value x : ops_[i].writes) {
            const std::size_t number = values_[x].array;
            if (placed[number]) continue;
            placed[number] = true;
            Array& array = arrays_[number];
            const std::size_t needed = round_up(array.width, LINE);
            Place* best = nullptr;
            for (Place& place : places)
                if (place.free_from <= i && place.width >= needed && (!best || place.width < best->width))
                    best = &place;
            if (best == nullptr) {
                places.push_back({row_width_, needed, 0});
                row_width_ += needed;
                best = &places.back();
            }
            array.offset = best->offset;
            best->free_from = std::max(array.last, i) + 1;
        }
}

void Program::check(const ProgramInput& input) const {
    require(result_ != NONE, "the program is not finished");
    const KvBatch& batch = input.batch;
    KvCache& cache = input.cache;
    require_ids(input.ids, batch.tokens(), vocabulary_);
    for (std::size_t i = 0; i < input.wanted_count; ++i)
        require(input.wanted[i] >= 0 && static_cast<std::size_t>(input.wanted[i]) < batch.tokens(), [&] {
            return "logits are wanted of a token that is not among the " + text(batch.tokens());
        });
    require(batch.tokens() == 0 || batch.last_position() < positions_, [&] {
        return "position " + text(batch.last_position()) + " in a table of " + text(positions_);
    });
    require_blocks(cache, batch);
    require(input.ropes.size() >= ropes_, [&] { return text(input.ropes.size()) + " rope tables of " + text(ropes_); });
    for (const AttentionPlace& at : places_) {
        require(at.group < cache.groups() && at.layer < cache.layers(at.group), [&] {
            return "layer " + text(at.layer) + " of KV group " + text(at.group) + " is not in the cache";
        });
        require(at.kv_heads == cache.kv_heads() && at.head_dim == cache.shape().head_dim,
                "a cache of other heads than the program's");
    }
    for (std::size_t group = 0; group < cache.groups(); ++group) batch.check_blocks(group, cache.blocks(group));
    for (const RopeView& rope : input.ropes) require_rope(rope.positions, rope.half, cache, batch);
}

void Program::run(const ProgramInput& input, float* out, Pool& pool) {
    check(input);
    if (input.batch.tokens() == 0) return;
    const std::size_t rows = round_up(std::max(input.batch.tokens(), input.wanted_count), ROWS);
    if (rows > capacity_) {
        capacity_ = 0;
        memory_ = Buffer();  // the old one first: both together might not fit
        memory_ = Buffer(workspace_bytes(rows));
        capacity_ = rows;
    }
    const Step step{*this, input, pool, memory_.as<float>(), capacity_};
    for (const Op& op : ops_) op.run(step);
    std::memcpy(out, step.at(result_), input.wanted_count * result_width() * sizeof(float));
}

}  // namespace octavo
