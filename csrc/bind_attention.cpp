// The KV cache, rope with the cache write, and attention over numpy arrays.
#include "bind.hpp"

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "attention.hpp"
#include "kv_batch.hpp"
#include "kv_cache.hpp"
#include "rope.hpp"

namespace octavo {

namespace {

using Strided = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Table = std::optional<Matrix>;

KvType type_named(const std::string& name) {
    if (name == "float32") return KvType::f32;
    if (name == "bfloat16") return KvType::bf16;
    if (name == "int8") return KvType::int8;
    throw std::invalid_argument("the KV cache holds float32, bfloat16 or int8, not " + name);
}

// Rows whose values are adjacent; the rows themselves may be apart, as in a slice of columns.
void require_rows(const Strided& x, const char* name, std::size_t tokens, std::size_t columns) {
    require(x.shape(0) == tokens && x.shape(1) == columns,
            std::string(name) + " is (" + text(x.shape(0)) + ", " + text(x.shape(1)) + "); expected (" +
                text(tokens) + ", " + text(columns) + ")");
    if (tokens == 0) return;
    require(columns <= 1 || x.stride(1) == 1, std::string(name) + " must have adjacent columns");
    require(tokens <= 1 || x.stride(0) >= 0, std::string(name) + " must not run backwards");
}

void require_place(KvCache& cache, const KvBatch& batch, std::size_t group, std::size_t layer) {
    require(group < cache.groups(), "KV group " + text(group) + " of " + text(cache.groups()));
    require(layer < cache.layers(group),
            "layer " + text(layer) + " of a KV group with " + text(cache.layers(group)));
    require_blocks(cache, batch);
    batch.check_blocks(group, cache.blocks(group));
}

void require_table(const Table& cos, const Table& sin, const KvCache& cache, const KvBatch& batch) {
    require(cos.has_value() == sin.has_value(), "a table of cosines needs one of sines");
    if (!cos.has_value()) return;
    require(cos->shape(0) == sin->shape(0) && cos->shape(1) == sin->shape(1),
            "the tables of cosines and sines differ in shape");
    require_rope(cos->shape(0), cos->shape(1), cache, batch);
}

std::size_t heads_of(const Strided& q, const KvCache& cache) {
    const std::size_t dims = cache.shape().head_dim, heads = q.shape(1) / dims;
    require(heads > 0 && q.shape(1) % dims == 0 && heads % cache.kv_heads() == 0,
            "queries of " + text(q.shape(1)) + " values: not a multiple of " + text(cache.kv_heads()) +
                " KV heads of " + text(dims));
    return heads;
}

NewMatrix rotate_and_store(Strided q, Strided k, Strided v, KvCache& cache, const KvBatch& batch, Table cos,
                         Table sin, bool interleaved, std::size_t group, std::size_t layer, Pool& pool) {
    const std::size_t tokens = batch.tokens(), dims = cache.shape().head_dim;
    const std::size_t heads = heads_of(q, cache);
    require_rows(q, "q", tokens, heads * dims);
    require_rows(k, "k", tokens, cache.kv_heads() * dims);
    require_rows(v, "v", tokens, cache.kv_heads() * dims);
    require_place(cache, batch, group, layer);
    require_table(cos, sin, cache, batch);
    const bool rotates = cos.has_value();
    const std::size_t half = rotates ? cos->shape(1) : 0;
    NewMatrix out = new_matrix(rotates ? tokens : 0, heads * dims);
    const RopeCall call{q.data(),
                        k.data(),
                        v.data(),
                        static_cast<std::size_t>(q.stride(0)),
                        static_cast<std::size_t>(k.stride(0)),
                        static_cast<std::size_t>(v.stride(0)),
                        rotates ? out.data() : nullptr,
                        rotates ? cos->data() : nullptr,
                        rotates ? sin->data() : nullptr,
                        half,
                        interleaved,
                        heads,
                        group,
                        layer};
    nb::gil_scoped_release released;
    rope_and_store(call, cache, batch, pool);
    return out;
}

NewMatrix attention(Strided q, KvCache& cache, const KvBatch& batch, std::size_t group, std::size_t layer,
                    float scale, std::size_t window, float softcap, std::optional<Vector> slopes,
                    std::optional<Vector> sinks, Pool& pool) {
    const std::size_t heads = heads_of(q, cache);
    require_rows(q, "q", batch.tokens(), q.shape(1));
    require_place(cache, batch, group, layer);
    require(!slopes.has_value() || slopes->shape(0) == heads, "there must be one slope for each head");
    require(!sinks.has_value() || sinks->shape(0) == heads, "there must be one sink for each head");
    NewMatrix out = new_matrix(batch.tokens(), q.shape(1));
    const AttentionCall call{q.data(),
                             static_cast<std::size_t>(q.stride(0)),
                             out.data(),
                             heads,
                             group,
                             layer,
                             scale,
                             softcap,
                             window,
                             slopes.has_value() ? slopes->data() : nullptr,
                             sinks.has_value() ? sinks->data() : nullptr};
    nb::gil_scoped_release released;
    attend_batch(call, cache, batch, pool);
    return out;
}

void bind_classes(nb::module_& module) {
    nb::class_<KvBatch>(module, "KvBatch", "A step's rows of consecutive tokens and their block tables.")
        .def(nb::init<std::size_t, KvBatch::Ints, KvBatch::Ints, const std::vector<std::vector<KvBatch::Ints>>&,
                      KvBatch::Ints>(),
             nb::arg("block_tokens"), nb::arg("positions"), nb::arg("row_starts"), nb::arg("tables"),
             nb::arg("write_from"))
        .def_prop_ro("tokens", &KvBatch::tokens);
    nb::class_<KvCache>(module, "KvCache", "The paged cache of keys and values.")
        .def(
            "__init__",
            [](KvCache* at, const std::string& type, std::size_t block_tokens, std::size_t kv_heads,
               std::size_t head_dim, const std::vector<std::size_t>& layers,
               const std::vector<std::size_t>& blocks) {
                new (at) KvCache(type_named(type), block_tokens, kv_heads, head_dim, layers, blocks);
            },
            nb::arg("dtype"), nb::arg("block_tokens"), nb::arg("kv_heads"), nb::arg("head_dim"),
            nb::arg("layers"), nb::arg("blocks"))
        .def(
            "copy",
            [](KvCache& cache, const std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>& pairs,
               Pool& pool) {
                std::vector<CopyPair> list;
                for (const auto& [group, source, target] : pairs) list.push_back({group, source, target});
                nb::gil_scoped_release released;
                cache.copy(list, pool);
            },
            nb::arg("pairs"), nb::arg("pool"),
            "Copies blocks (group, source, target); all sources are read before any target is written.")
        .def(
            "read_block",
            [](KvCache& cache, std::size_t group, std::size_t block) {
                require(group < cache.groups(), "KV group " + text(group) + " of " + text(cache.groups()));
                const std::size_t size = cache.block_bytes(group);
                nb::bytes data = nb::steal<nb::bytes>(
                    PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
                if (!data.is_valid()) nb::raise_python_error();
                cache.read(group, block, reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(data.ptr())));
                return data;
            },
            nb::arg("group"), nb::arg("block"), "The bytes of one block, all layers.")
        .def(
            "write_block",
            [](KvCache& cache, std::size_t group, std::size_t block, const nb::bytes& data) {
                require(group < cache.groups(), "KV group " + text(group) + " of " + text(cache.groups()));
                require(data.size() == cache.block_bytes(group),
                        text(data.size()) + " bytes for a block of " + text(cache.block_bytes(group)));
                cache.write(group, block, static_cast<const std::uint8_t*>(data.data()));
            },
            nb::arg("group"), nb::arg("block"), nb::arg("data"), "What `read_block` gave, into a block.")
        .def(
            "block_bytes",
            [](const KvCache& cache, std::size_t group) {
                require(group < cache.groups(), "KV group " + text(group) + " of " + text(cache.groups()));
                return cache.block_bytes(group);
            },
            nb::arg("group"), "Bytes of one block of a group, all its layers.");
}

}  // namespace

void bind_attention(nb::module_& module) {
    bind_classes(module);
    module.def("rope_and_store", &rotate_and_store, nb::arg("q").noconvert(), nb::arg("k").noconvert(),
               nb::arg("v").noconvert(), nb::arg("cache"), nb::arg("batch"), nb::arg("cos").none(),
               nb::arg("sin").none(), nb::arg("interleaved"), nb::arg("group"), nb::arg("layer"),
               nb::arg("pool"),
               "Writes k and v (tokens, kv_heads * head_dim) to the cache, k rotated; returns q rotated. "
               "Without tables (positions, pairs of dimensions) nothing is rotated or returned.");
    module.def("attention", &attention, nb::arg("q").noconvert(), nb::arg("cache"), nb::arg("batch"),
               nb::arg("group"), nb::arg("layer"), nb::arg("scale"), nb::arg("window"), nb::arg("softcap"),
               nb::arg("slopes").none(), nb::arg("sinks").none(), nb::arg("pool"),
               "Causal attention of q (tokens, heads * head_dim) over the batch's block tables: a new array "
               "of the same shape. `sinks` has a score for each head that takes weight and gives no value.");
}

}  // namespace octavo
