// Packed float32 and bf16 weights over numpy arrays.
#include "bind.hpp"

#include <nanobind/stl/string.h>

#include "float_weight.hpp"

namespace octavo {

namespace {

using Halves = nb::ndarray<const std::uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t MOST = std::size_t{1} << 30;

FloatWeight* new_weight(FloatWeight* at, std::size_t outputs, std::size_t inputs, const std::string& format) {
    require(format == "bf16" || format == "f32", "format is '" + format + "'; it must be f32 or bf16");
    require(outputs > 0 && inputs > 0 && outputs <= MOST && inputs <= MOST,
            "a weight of " + text(outputs) + " outputs and " + text(inputs) + " inputs");
    return new (at) FloatWeight(outputs, inputs, format == "bf16");
}

void require_rows(const FloatWeight& weight, std::size_t first, std::size_t count, std::size_t width) {
    require(width == weight.inputs(),
            "rows of " + text(width) + " values for " + text(weight.inputs()) + " inputs");
    require(first <= weight.outputs() && count <= weight.outputs() - first,
            text(count) + " rows from " + text(first) + " on do not fit into " + text(weight.outputs()));
}

void set_bias(FloatWeight& weight, Vector bias) {
    require(bias.shape(0) == weight.outputs(),
            text(bias.shape(0)) + " values for " + text(weight.outputs()) + " outputs");
    weight.set_bias(bias.data());
}

void pack_floats(FloatWeight& weight, std::size_t first, Matrix rows) {
    require_rows(weight, first, rows.shape(0), rows.shape(1));
    nb::gil_scoped_release released;
    weight.pack_floats(first, rows.data(), rows.shape(0));
}

void pack_halves(FloatWeight& weight, std::size_t first, Halves rows) {
    require_rows(weight, first, rows.shape(0), rows.shape(1));
    nb::gil_scoped_release released;
    weight.pack_halves(first, rows.data(), rows.shape(0));
}

NewMatrix linear(const FloatWeight& weight, Matrix x, Pool& pool) {
    require(x.shape(1) == weight.inputs(),
            "rows of " + text(x.shape(1)) + " values for " + text(weight.inputs()) + " inputs");
    NewMatrix out = new_matrix(x.shape(0), weight.outputs());
    nb::gil_scoped_release released;
    weight.multiply(x.data(), x.shape(0), out.data(), weight.outputs(), pool);
    return out;
}

NewMatrix embed(const FloatWeight& weight, Ids ids, Pool& pool) {
    require_ids(ids, weight.outputs());
    NewMatrix out = new_matrix(ids.shape(0), weight.inputs());
    nb::gil_scoped_release released;
    weight.embed(ids.data(), ids.shape(0), out.data(), pool);
    return out;
}

}  // namespace

void bind_linear(nb::module_& module) {
    nb::class_<FloatWeight>(module, "FloatWeight",
                            "A matrix (outputs, inputs), packed as float32 or bf16, and its bias.")
        .def("__init__", &new_weight, nb::arg("outputs"), nb::arg("inputs"), nb::arg("format"),
             "All zero. `format` is \"f32\" or \"bf16\".")
        .def("set_bias", &set_bias, nb::arg("bias").noconvert(), "(outputs,) float32.")
        .def("pack_floats", &pack_floats, nb::arg("first"), nb::arg("rows").noconvert(),
             "Rows (count, inputs) float32 become the outputs from `first` on; bf16 rounds to "
             "nearest, ties to even. Threads may pack different rows at once.")
        .def("pack_halves", &pack_halves, nb::arg("first"), nb::arg("rows").noconvert(),
             "The same from bf16 values as uint16: exact in either format.")
        .def("linear", &linear, nb::arg("x").noconvert(), nb::arg("pool"),
             "x (rows, inputs) float32 times the weights, plus the bias: (rows, outputs), new. A "
             "row's values depend on that row alone.")
        .def("embed", &embed, nb::arg("ids").noconvert(), nb::arg("pool"),
             "Rows `ids` (int64) of the table: (ids, inputs) float32, new.")
        .def_prop_ro("outputs", &FloatWeight::outputs)
        .def_prop_ro("inputs", &FloatWeight::inputs)
        .def_prop_ro("format", [](const FloatWeight& weight) { return weight.half() ? "bf16" : "f32"; })
        .def_prop_ro("bytes", &FloatWeight::bytes);
}

}  // namespace octavo
