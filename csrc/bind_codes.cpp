// Packed codes over numpy arrays: packing, products, rows of embeddings.
#include <algorithm>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "code_matrix.hpp"
#include "code_product.hpp"

namespace octavo {

namespace {

using ByteMatrix = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Inputs of one channel and one row whose products surely fit 32 bits: 255 * 127 * 2^16 < 2^31.
constexpr std::size_t MOST_INPUTS = 1 << 16;

CodeMatrix* new_matrix_of_codes(CodeMatrix* at, const std::string& name, std::size_t outputs,
                                std::size_t inputs) {
    const CodeFormat* format = find_code_format(name);
    require(format != nullptr, "'" + name + "' is not a format that codes are packed from");
    require(outputs > 0 && inputs > 0, "a matrix must have outputs and inputs");
    require(outputs < (std::size_t{1} << 31), "a matrix has at most 2^31 - 1 outputs");
    require(inputs <= MOST_INPUTS, "codes are packed for at most " + text(MOST_INPUTS) + " inputs, not " +
                                       text(inputs));
    const std::size_t unit = std::max<std::size_t>(format->block_weights, 1);
    require(inputs % unit == 0,
            name + " holds blocks of " + text(unit) + " weights; " + text(inputs) + " inputs do not divide");
    return new (at) CodeMatrix(*format, outputs, inputs);
}

void check_place(const CodeMatrix& matrix, std::size_t first, std::size_t rows) {
    require(first <= matrix.outputs() && rows <= matrix.outputs() - first,
            "rows " + text(first) + " to " + text(first + rows) + " of " + text(matrix.outputs()));
}

void put_source(CodeMatrix& matrix, std::size_t first, ByteMatrix rows) {
    const CodeFormat& format = matrix.format();
    require(format.read != nullptr, std::string(format.name) + " has no source format");
    check_place(matrix, first, rows.shape(0));
    const std::size_t bytes = matrix.inputs() / format.block_weights * format.block_bytes;
    require(rows.shape(1) == bytes, std::string(format.name) + " rows of " + text(matrix.inputs()) +
                                        " inputs take " + text(bytes) + " bytes, not " + text(rows.shape(1)));
    nb::gil_scoped_release released;
    matrix.put_source(first, rows.shape(0), rows.data());
}

void put_codes(CodeMatrix& matrix, std::size_t first, ByteMatrix codes, Matrix scales,
               std::optional<Matrix> minima) {
    const std::size_t rows = codes.shape(0), groups = matrix.groups();
    check_place(matrix, first, rows);
    require(codes.shape(1) == matrix.inputs(), text(codes.shape(1)) + " codes for " +
                                                   text(matrix.inputs()) + " inputs");
    require(scales.shape(0) == rows && scales.shape(1) == groups,
            "scales must be (" + text(rows) + ", " + text(groups) + ")");
    require(minima.has_value() == matrix.layout().minimum,
            std::string(matrix.format().name) +
                (matrix.layout().minimum ? " needs minima" : " has no minima"));
    if (minima)
        require(minima->shape(0) == rows && minima->shape(1) == groups, "minima must be shaped as scales are");
    const bool nibble = matrix.layout().kind == NIBBLE;
    const std::uint8_t* end = codes.data() + rows * matrix.inputs();
    require(!nibble || std::all_of(codes.data(), end, [](std::uint8_t code) { return code < 16; }),
            "codes of 4 bits must be below 16");
    nb::gil_scoped_release released;
    matrix.put_codes(first, rows, codes.data(), scales.data(), minima ? minima->data() : nullptr);
}

void set_order(CodeMatrix& matrix, Ids order) {
    const std::size_t inputs = matrix.inputs();
    require(order.shape(0) == inputs,
            "an order of " + text(order.shape(0)) + " for " + text(inputs) + " inputs");
    require_ids(order, inputs);
    std::vector<bool> seen(inputs, false);
    for (std::size_t i = 0; i < inputs; ++i) seen[static_cast<std::size_t>(order.data()[i])] = true;
    require(std::find(seen.begin(), seen.end(), false) == seen.end(), "an order must name each input once");
    matrix.set_order({order.data(), order.data() + inputs});
}

NewMatrix linear_codes(Matrix x, const std::vector<const CodeMatrix*>& parts, std::optional<Vector> bias,
                       Pool& pool) {
    require(!parts.empty(), "a product needs at least one matrix");
    std::size_t outputs = 0;
    for (const CodeMatrix* part : parts) {
        require(x.shape(1) == part->inputs(), "rows of " + text(x.shape(1)) + " values for a matrix of " +
                                                  text(part->inputs()) + " inputs");
        outputs += part->outputs();
    }
    require(!bias || bias->shape(0) == outputs,
            "bias has " + text(bias ? bias->shape(0) : 0) + " values for " + text(outputs) + " outputs");
    NewMatrix out = new_matrix(x.shape(0), outputs);
    nb::gil_scoped_release released;
    multiply_codes(x.data(), x.shape(0), parts, bias ? bias->data() : nullptr, out.data(), outputs, pool);
    return out;
}

NewMatrix rows_of(const CodeMatrix& matrix, Ids ids, Pool& pool) {
    require_ids(ids, matrix.outputs());
    NewMatrix out = new_matrix(ids.shape(0), matrix.inputs());
    nb::gil_scoped_release released;
    embed_codes(matrix, ids.data(), ids.shape(0), out.data(), pool);
    return out;
}

}  // namespace

void bind_codes(nb::module_& module) {
    nb::class_<CodeMatrix>(module, "CodeMatrix",
                           "A matrix of codes, packed: CodeMatrix(format, outputs, inputs), then filled by "
                           "`put_source` or `put_codes`; rows that were not put are zero.")
        .def("__init__", &new_matrix_of_codes, nb::arg("format"), nb::arg("outputs"), nb::arg("inputs"))
        .def("put_source", &put_source, nb::arg("first"), nb::arg("rows").noconvert(),
             "Outputs from `first` on, from rows of uint8 in the format's own bytes.")
        .def("put_codes", &put_codes, nb::arg("first"), nb::arg("codes").noconvert(),
             nb::arg("scales").noconvert(), nb::arg("minima").noconvert() = nb::none(),
             "Outputs from `first` on: codes (rows, inputs) uint8, scales and minima (rows, groups). Where "
             "the format has zeros, `minima` are those, negated.")
        .def("set_order", &set_order, nb::arg("order").noconvert(),
             "Packs and groups inputs in this order (int64), before any codes are put.")
        .def("rows", &rows_of, nb::arg("ids").noconvert(), nb::arg("pool"),
             "The named outputs' weights as float32 (ids, inputs); ids are int64.")
        .def_prop_ro("outputs", &CodeMatrix::outputs)
        .def_prop_ro("inputs", &CodeMatrix::inputs)
        .def_prop_ro("groups", &CodeMatrix::groups)
        .def_prop_ro("nbytes", &CodeMatrix::bytes);
    module.def("linear_codes", &linear_codes, nb::arg("x").noconvert(), nb::arg("parts"), nb::arg("bias").none(),
               nb::arg("pool"),
               "x (rows, inputs) times the parts' outputs one after the other, plus bias: float32, a new "
               "array. Activations are rounded to int8 in groups of 16, or of 64 where a channel has one "
               "scale. Raises ValueError where sizes differ.");
}

}  // namespace octavo
