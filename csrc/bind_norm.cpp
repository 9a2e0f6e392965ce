// Row-wise ops over numpy arrays: norms, activations, sums.
#include "bind.hpp"

#include <string_view>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include "names.hpp"
#include "row_ops.hpp"

namespace octavo {

namespace {

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
    // Rows wider than the weight are several of its width, one after another.
    const std::size_t width = weight.shape(0);
    require(width > 0 && x.shape(1) % width == 0,
            "weight has " + std::to_string(width) + " values for rows of " + std::to_string(x.shape(1)));
    const std::size_t rows = x.size() / width;
    if (bias) require_width("bias", *bias, width);
    if (residual) require_same_shape("residual", *residual, x);
    const Norm spec{weight.data(), bias ? bias->data() : nullptr, width, eps, offset, norm_is_centred(kind)};
    NewMatrix out = new_matrix(x.shape(0), x.shape(1));
    std::optional<NewMatrix> total;
    if (residual) total = new_matrix(x.shape(0), x.shape(1));
    const float* added = residual ? residual->data() : nullptr;
    float* sums = total ? total->data() : nullptr;
    {
        nb::gil_scoped_release released;
        norm_rows(spec, x.data(), added, sums, out.data(), rows, pool);
    }
    return nb::make_tuple(out, total ? nb::cast(*total) : nb::cast(x));
}

NewMatrix act(Matrix x, std::string_view kind, Pool& pool) {
    const NamedActivation named = activation_named(kind);
    require(!named.gated || x.shape(1) % 2 == 0,
            "a gated activation takes rows of even width, not " + std::to_string(x.shape(1)));
    const std::size_t rows = x.shape(0), width = named.gated ? x.shape(1) / 2 : x.shape(1);
    NewMatrix out = new_matrix(rows, width);
    nb::gil_scoped_release released;
    act_rows(named.kind, named.gated, x.data(), out.data(), rows, width, pool);
    return out;
}

NewMatrix add(Matrix x, Matrix y, float factor, Pool& pool) {
    require_same_shape("y", y, x);
    NewMatrix out = new_matrix(x.shape(0), x.shape(1));
    nb::gil_scoped_release released;
    add_values(x.data(), y.data(), factor, out.data(), x.size(), pool);
    return out;
}

NewMatrix scale(Matrix x, float factor, Pool& pool) {
    NewMatrix out = new_matrix(x.shape(0), x.shape(1));
    nb::gil_scoped_release released;
    scale_values(x.data(), factor, out.data(), x.size(), pool);
    return out;
}

NewMatrix bound(Matrix x, float limit, bool smooth, Pool& pool) {
    NewMatrix out = new_matrix(x.shape(0), x.shape(1));
    nb::gil_scoped_release released;
    bound_values(smooth, x.data(), limit, out.data(), x.size(), pool);
    return out;
}

}  // namespace

void bind_norm(nb::module_& module) {
    module.def("norm", &norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("kind"),
               nb::arg("eps"), nb::arg("offset"), nb::arg("residual").noconvert().none(),
               nb::arg("bias").noconvert().none(), nb::arg("pool"),
               "Norm (\"rms\" or \"layer\") of each row of x (rows, width) plus residual, or of each piece "
               "of a row that is as wide as the weight: returns "
               "(normed * (weight + offset) + bias, that sum), float32; without a residual the sum is "
               "x itself. Raises ValueError where shapes differ.");
    module.def("act", &act, nb::arg("x").noconvert(), nb::arg("kind"), nb::arg("pool"),
               "Activation of x (rows, n); a kind \"..._gated\" takes (rows, 2 n), gate first. Raises "
               "ValueError for an unknown kind or an odd width.");
    module.def("add", &add, nb::arg("x").noconvert(), nb::arg("y").noconvert(), nb::arg("factor"),
               nb::arg("pool"), "x + y * factor. Raises ValueError where the shapes differ.");
    module.def("scale", &scale, nb::arg("x").noconvert(), nb::arg("factor"), nb::arg("pool"),
               "x * factor.");
    module.def("bound", &bound, nb::arg("x").noconvert(), nb::arg("limit"), nb::arg("smooth"), nb::arg("pool"),
               "x held within +-limit: cut off there, or limit * tanh(x / limit).");
}

}  // namespace octavo
