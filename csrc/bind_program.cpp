// Recording and running a program over numpy arrays.
#include "bind.hpp"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "names.hpp"
#include "program.hpp"

namespace octavo {

namespace {

using Value = Program::Value;

AttentionPlace place(std::size_t group, std::size_t layer, std::size_t heads, std::size_t kv_heads,
                     std::size_t head_dim) {
    return {group, layer, heads, kv_heads, head_dim};
}

void require_values(const Program& program, std::initializer_list<Value> values) {
    for (const Value x : values) require(x < program.values(), "there is no value " + text(x));
}

std::pair<Value, Value> norm(Program& program, Value x, std::optional<Value> residual, Vector weight,
                             std::string_view kind, float eps, float offset, std::optional<Vector> bias) {
    require_values(program, {x, residual.value_or(x)});
    const std::size_t width = weight.shape(0);
    require(!bias || bias->shape(0) == width, "a norm's bias must have " + text(width) + " values");
    const Norm spec{weight.data(), bias ? bias->data() : nullptr, width, eps, offset, norm_is_centred(kind)};
    Value total = x;
    const Value out = program.norm(x, residual.value_or(Program::NONE), spec, &total);
    return {out, total};
}

void codes(Program& program, Value x, const std::vector<const CodeMatrix*>& parts, std::optional<Vector> bias,
           Value out, std::size_t column) {
    require_values(program, {x, out});
    std::size_t outputs = 0;
    for (const CodeMatrix* part : parts) outputs += part->outputs();
    require(!bias || bias->shape(0) == outputs, "a bias must have " + text(outputs) + " values");
    program.product(x, parts, bias ? bias->data() : nullptr, out, column);
}

Value act(Program& program, Value x, std::string_view kind) {
    require_values(program, {x});
    const NamedActivation named = activation_named(kind);
    return program.act(x, named.kind, named.gated);
}

Value attention(Program& program, Value q, std::size_t group, std::size_t layer, std::size_t heads,
                std::size_t kv_heads, std::size_t head_dim, float scale, std::size_t window, float softcap,
                std::optional<Vector> slopes) {
    require_values(program, {q});
    require(!slopes || slopes->shape(0) == heads, "there must be one slope for each head");
    return program.attention(q, place(group, layer, heads, kv_heads, head_dim), scale, window, softcap,
                             slopes ? slopes->data() : nullptr);
}

NewMatrix run(Program& program, Ids ids, Ids wanted, const KvBatch& batch, KvCache& cache,
              const std::vector<std::pair<Matrix, Matrix>>& tables, Pool& pool) {
    require(ids.shape(0) == batch.tokens(),
            text(ids.shape(0)) + " ids for a batch of " + text(batch.tokens()) + " tokens");
    std::vector<RopeView> ropes;
    for (const auto& [cos, sin] : tables) {
        require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1),
                "the tables of cosines and sines differ in shape");
        ropes.push_back({cos.data(), sin.data(), cos.shape(0), cos.shape(1)});
    }
    NewMatrix out = new_matrix(wanted.shape(0), program.result_width());
    const ProgramInput input{ids.data(), wanted.data(), wanted.shape(0), batch, cache, ropes};
    nb::gil_scoped_release released;
    program.run(input, out.data(), pool);
    return out;
}

void bind_values(nb::class_<Program>& program) {
    program.def("embed", nb::overload_cast<const FloatWeight&>(&Program::embed), nb::arg("table"))
        .def("embed", nb::overload_cast<const CodeMatrix&>(&Program::embed), nb::arg("table"))
        .def("embed_positions", nb::overload_cast<const FloatWeight&, std::size_t>(&Program::embed_positions),
             nb::arg("table"), nb::arg("offset"))
        .def("embed_positions", nb::overload_cast<const CodeMatrix&, std::size_t>(&Program::embed_positions),
             nb::arg("table"), nb::arg("offset"))
        .def("columns", &Program::columns, nb::arg("x"), nb::arg("first"), nb::arg("last"))
        .def(
            "matrix",
            [](Program& self, Value like, std::size_t width) {
                require_values(self, {like});
                return self.matrix(like, width);
            },
            nb::arg("like"), nb::arg("width"), "As many rows as `like`, to be filled by products.")
        .def(
            "floats",
            [](Program& self, Value x, const FloatWeight& weight, Value out, std::size_t column) {
                require_values(self, {x, out});
                self.product(x, weight, out, column);
            },
            nb::arg("x"), nb::arg("weight"), nb::arg("out"), nb::arg("column"))
        .def("codes", &codes, nb::arg("x"), nb::arg("parts"), nb::arg("bias").none(), nb::arg("out"),
             nb::arg("column"))
        .def(
            "experts",
            [](Program& self, Value x, Value logits, const Experts& experts) {
                require_values(self, {x, logits});
                return self.experts(x, logits, experts);
            },
            nb::arg("x"), nb::arg("logits"), nb::arg("experts"))
        .def("norm", &norm, nb::arg("x"), nb::arg("residual").none(), nb::arg("weight").noconvert(),
             nb::arg("kind"), nb::arg("eps"), nb::arg("offset"), nb::arg("bias").noconvert().none())
        .def("act", &act, nb::arg("x"), nb::arg("kind"))
        .def(
            "add",
            [](Program& self, Value x, Value y, float factor) {
                require_values(self, {x, y});
                return self.add(x, y, factor);
            },
            nb::arg("x"), nb::arg("y"), nb::arg("factor"))
        .def(
            "scale",
            [](Program& self, Value x, float factor) {
                require_values(self, {x});
                return self.scale(x, factor);
            },
            nb::arg("x"), nb::arg("factor"))
        .def(
            "bound",
            [](Program& self, Value x, float limit, bool smooth) {
                require_values(self, {x});
                return self.bound(x, limit, smooth);
            },
            nb::arg("x"), nb::arg("limit"), nb::arg("smooth"))
        .def(
            "rope_and_store",
            [](Program& self, Value q, Value k, Value v, std::size_t group, std::size_t layer, std::size_t heads,
               std::size_t kv_heads, std::size_t head_dim, std::optional<std::size_t> rope, bool interleaved) {
                require_values(self, {q, k, v});
                return self.rope_and_store(q, k, v, place(group, layer, heads, kv_heads, head_dim),
                                           rope.value_or(Program::NONE), interleaved);
            },
            nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("group"), nb::arg("layer"), nb::arg("heads"),
            nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("rope").none(), nb::arg("interleaved"))
        .def("attention", &attention, nb::arg("q"), nb::arg("group"), nb::arg("layer"), nb::arg("heads"),
             nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("scale"), nb::arg("window"), nb::arg("softcap"),
             nb::arg("slopes").noconvert().none())
        .def(
            "logit_rows",
            [](Program& self, Value x) {
                require_values(self, {x});
                return self.logit_rows(x);
            },
            nb::arg("x"));
}

}  // namespace

void bind_program(nb::module_& module) {
    nb::class_<Program> program(module, "Program",
                                "A step's ops, recorded once and run for every batch. Values are numbers. What "
                                "is passed in (weights, vectors) must outlive the program. Raises ValueError "
                                "where widths do not fit.");
    program.def(nb::init<>());
    bind_values(program);
    program
        .def(
            "finish",
            [](Program& self, Value result) {
                require_values(self, {result});
                self.finish(result);
            },
            nb::arg("result"), "`result` is what `run` gives; nothing can be recorded after it.")
        .def("width", [](const Program& self, Value x) {
            require_values(self, {x});
            return self.width(x);
        })
        .def("workspace_bytes", &Program::workspace_bytes, nb::arg("rows"),
             "Bytes that a batch of so many rows takes between ops.")
        .def("run", &run, nb::arg("ids").noconvert(), nb::arg("wanted").noconvert(), nb::arg("batch"),
             nb::arg("cache"), nb::arg("ropes"), nb::arg("pool"),
             "The result's rows (wanted, width) for tokens `ids`, new; `ropes` are tables of cosines and "
             "sines (positions, half). Raises ValueError where the batch, the cache or the tables do not "
             "fit what was recorded, MemoryError.");
}

}  // namespace octavo
