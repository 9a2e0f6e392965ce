// Row-wise ops over numpy arrays: norms, activations, sums.
#include "bind.hpp"

#include <algorithm>
#include <string_view>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include "kernels.hpp"

namespace octavo {

namespace {

// Values from which on a piece is worth another thread, by what a value costs: some 10 microseconds.
constexpr std::size_t CHEAP = 1 << 15;
constexpr std::size_t COSTLY = 1 << 13;

// Calls work(begin, end) for spans of `count` items of `width` values, on as many threads as pay.
template <class Work>
void share(Pool& pool, std::size_t count, std::size_t width, std::size_t worth, Work work) {
    const std::size_t pieces = std::clamp<std::size_t>(count * width / worth, 1, 1024);
    const std::size_t span = (count + pieces - 1) / pieces;
    pool.run(pieces, [&](std::size_t i) {
        const std::size_t begin = std::min(count, i * span);
        work(begin, std::min(count, begin + span));
    });
}

std::string shape_of(const Matrix& x) {
    return std::to_string(x.shape(0)) + " x " + std::to_string(x.shape(1));
}

void require_width(const char* name, const Vector& v, std::size_t width) {
    require(v.shape(0) == width, std::string(name) + " has " + std::to_string(v.shape(0)) +
                                     " values for rows of " + std::to_string(width));
}

void require_same_shape(const char* name, const Matrix& y, const Matrix& x) {
    require(y.shape(0) == x.shape(0) && y.shape(1) == x.shape(1),
            std::string(name) + " is " + shape_of(y) + ", but x is " + shape_of(x));
}

nb::tuple norm(Matrix x, Vector weight, std::string_view kind, float eps, float offset,
               std::optional<Matrix> residual, std::optional<Vector> bias, Pool& pool) {
    const std::size_t rows = x.shape(0), width = x.shape(1);
    require(kind == "rms" || kind == "layer",
            "unknown norm '" + std::string(kind) + "'; known are rms, layer");
    require_width("weight", weight, width);
    if (bias) require_width("bias", *bias, width);
    if (residual) require_same_shape("residual", *residual, x);
    const Norm spec{weight.data(), bias ? bias->data() : nullptr, width, eps, offset, kind == "layer"};
    NewMatrix out = new_matrix(rows, width);
    std::optional<NewMatrix> total;
    if (residual) total = new_matrix(rows, width);
    const float* added = residual ? residual->data() : nullptr;
    float* sums = total ? total->data() : nullptr;
    {
        nb::gil_scoped_release released;
        share(pool, rows, width, CHEAP, [&](std::size_t begin, std::size_t end) {
            for (std::size_t r = begin; r < end; ++r) {
                const std::size_t at = r * width;
                kernels().norm(spec, x.data() + at, added ? added + at : nullptr,
                               sums ? sums + at : nullptr, out.data() + at);
            }
        });
    }
    return nb::make_tuple(out, total ? nb::cast(*total) : nb::cast(x));
}

Activation activation_of(std::string_view name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu") return Activation::gelu;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    if (name == "relu") return Activation::relu;
    throw std::invalid_argument("unknown activation '" + std::string(name) +
                                "'; known are silu, gelu, gelu_tanh, relu, each also with _gated");
}

NewMatrix act(Matrix x, std::string_view kind, Pool& pool) {
    constexpr std::string_view suffix = "_gated";
    std::string_view name = kind;
    const bool gated = name.ends_with(suffix);
    if (gated) name.remove_suffix(suffix.size());
    const Activation activation = activation_of(name);
    require(!gated || x.shape(1) % 2 == 0,
            "a gated activation takes rows of even width, not " + std::to_string(x.shape(1)));
    const std::size_t rows = x.shape(0), inputs = x.shape(1);
    const std::size_t width = gated ? inputs / 2 : inputs;
    NewMatrix out = new_matrix(rows, width);
    nb::gil_scoped_release released;
    share(pool, rows, width, COSTLY, [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r) {
            const float* row = x.data() + r * inputs;
            kernels().act(activation, row, gated ? row + width : nullptr, out.data() + r * width, width);
        }
    });
    return out;
}

NewMatrix add(Matrix x, Matrix y, float factor, Pool& pool) {
    require_same_shape("y", y, x);
    NewMatrix out = new_matrix(x.shape(0), x.shape(1));
    nb::gil_scoped_release released;
    share(pool, x.size(), 1, CHEAP, [&](std::size_t begin, std::size_t end) {
        kernels().add_scaled(x.data() + begin, y.data() + begin, factor, out.data() + begin, end - begin);
    });
    return out;
}

NewMatrix scale(Matrix x, float factor, Pool& pool) {
    NewMatrix out = new_matrix(x.shape(0), x.shape(1));
    nb::gil_scoped_release released;
    share(pool, x.size(), 1, CHEAP, [&](std::size_t begin, std::size_t end) {
        kernels().scale(x.data() + begin, factor, out.data() + begin, end - begin);
    });
    return out;
}

}  // namespace

void bind_norm(nb::module_& module) {
    module.def("norm", &norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("kind"),
               nb::arg("eps"), nb::arg("offset"), nb::arg("residual").noconvert().none(),
               nb::arg("bias").noconvert().none(), nb::arg("pool"),
               "Norm (\"rms\" or \"layer\") of each row of x (rows, width) plus residual: returns "
               "(normed * (weight + offset) + bias, that sum), float32; without a residual the sum is "
               "x itself. Raises ValueError where shapes differ.");
    module.def("act", &act, nb::arg("x").noconvert(), nb::arg("kind"), nb::arg("pool"),
               "Activation of x (rows, n); a kind \"..._gated\" takes (rows, 2 n), gate first. Raises "
               "ValueError for an unknown kind or an odd width.");
    module.def("add", &add, nb::arg("x").noconvert(), nb::arg("y").noconvert(), nb::arg("factor"),
               nb::arg("pool"), "x + y * factor. Raises ValueError where the shapes differ.");
    module.def("scale", &scale, nb::arg("x").noconvert(), nb::arg("factor"), nb::arg("pool"),
               "x * factor.");
}

}  // namespace octavo
