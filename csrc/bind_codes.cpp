// Packed codes over numpy arrays: packing, products, rows of embeddings.
#include <algorithm>
#include <cstring>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "code_matrix.hpp"
#include "kernels.hpp"

namespace octavo {

namespace {

using ByteMatrix = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>>;

// Inputs of one channel and one row whose products surely fit 32 bits: 255 * 127 * 2^16 < 2^31.
constexpr std::size_t MOST_INPUTS = 1 << 16;

std::string text(std::size_t n) { return std::to_string(n); }

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

// Memory that a product's activations need, kept from call to call: it grows to the largest batch.
struct Scratch {
    std::vector<std::uint8_t> codes;
    std::vector<float> scales, sums;
    std::vector<std::int32_t> offsets;
    std::vector<float> padded;
};

struct Form {
    bool wide, minimum;
    int group, zero;
    bool operator==(const Form&) const = default;
};

Form form_of(const CodeLayout& layout) {
    return {kernels().code_wide(layout.kind), layout.minimum, layout.group, layout.zero};
}

// The activations of the tile that begins at `row`.
CodeActivations tile_at(Scratch& scratch, const CodeLayout& layout, std::size_t row) {
    const std::size_t step = kernels().code_wide(layout.kind) ? 2 : 1;
    const std::size_t scales = layout.group == 0 ? 1 : layout.inputs / 32;
    const std::size_t groups = layout.group == 0 ? 1 : layout.inputs / layout.group;
    return {scratch.codes.data() + row * layout.inputs * step, scratch.scales.data() + row * scales,
            scratch.offsets.data() + row * groups, scratch.sums.data() + row * groups};
}

template <class T>
void reserve(std::vector<T>& values, std::size_t count) {
    if (values.size() < count) values.resize(count);
}

void quantize(const Matrix& x, const CodeMatrix& matrix, Scratch& scratch, Pool& pool) {
    const CodeLayout& layout = matrix.layout();
    const std::size_t rows = x.shape(0), inputs = matrix.inputs(), tile = kernels().code_tile;
    const std::size_t groups = matrix.groups();
    reserve(scratch.codes, rows * layout.inputs * (kernels().code_wide(layout.kind) ? 2 : 1));
    reserve(scratch.scales, rows * (layout.group == 0 ? 1 : layout.inputs / 32));
    reserve(scratch.offsets, rows * groups);
    reserve(scratch.sums, rows * groups);
    const bool padded = inputs != layout.inputs;
    if (padded) reserve(scratch.padded, rows * layout.inputs);
    const auto one = [&](std::size_t r) {
        const float* from = x.data() + r * inputs;
        if (padded) {
            float* copy = scratch.padded.data() + r * layout.inputs;
            std::memcpy(copy, from, inputs * sizeof(float));
            std::fill(copy + inputs, copy + layout.inputs, 0.0f);
            from = copy;
        }
        const std::size_t first = r / tile * tile;
        kernels().quantize_row(layout, from, tile_at(scratch, layout, first), r - first,
                               std::min(tile, rows - first));
    };
    // Waking the others costs more than a few rows do.
    if (rows * inputs < 16384)
        for (std::size_t r = 0; r < rows; ++r) one(r);
    else
        pool.run((rows + 7) / 8, [&](std::size_t i) {
            for (std::size_t r = 8 * i; r < std::min(rows, 8 * i + 8); ++r) one(r);
        });
}

void multiply(const CodeMatrix& matrix, Scratch& scratch, std::size_t rows, const float* bias, float* out,
              std::size_t stride, Pool& pool) {
    const std::size_t tile = kernels().code_tile, size = kernels().code_block;
    const std::size_t blocks = matrix.blocks();
    // So many rows that their codes stay in the cache while blocks of weights pass by.
    const std::size_t chunk = 64;
    const std::size_t chunks = (rows + chunk - 1) / chunk;
    // Pieces of some tens of kilobytes of weights, and several for each thread.
    const std::size_t wanted = std::max<std::size_t>(1, (32 << 10) / matrix.block_bytes());
    const std::size_t fair = std::max<std::size_t>(1, blocks * chunks / (8 * pool.threads()));
    const std::size_t run = std::min({wanted, fair, blocks});
    const std::size_t runs = (blocks + run - 1) / run;
    pool.run(chunks * runs, [&](std::size_t piece) {
        const std::size_t first = piece / runs * chunk, end = std::min(rows, first + chunk);
        const std::size_t from = piece % runs * run, to = std::min(blocks, from + run);
        for (std::size_t b = from; b < to; ++b) {
            const std::size_t column = b * size, live = std::min(size, matrix.outputs() - column);
            for (std::size_t row = first; row < end; row += tile)
                kernels().linear_codes(matrix.layout(), matrix.block(b), tile_at(scratch, matrix.layout(), row),
                                       std::min(tile, rows - row), bias ? bias + column : nullptr,
                                       out + row * stride + column, stride, live);
        }
    });
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
    const std::size_t rows = x.shape(0);
    NewMatrix out = new_matrix(rows, outputs);
    if (rows == 0) return out;
    static thread_local Scratch scratch;
    Scratch& own = scratch;  // the caller's, also where its pieces run on other threads
    nb::gil_scoped_release released;
    const CodeMatrix* last = nullptr;
    std::size_t column = 0;
    for (const CodeMatrix* part : parts) {
        if (last == nullptr || !(form_of(last->layout()) == form_of(part->layout())))
            quantize(x, *part, own, pool);
        multiply(*part, own, rows, bias ? bias->data() + column : nullptr, out.data() + column, outputs, pool);
        column += part->outputs();
        last = part;
    }
    return out;
}

NewMatrix rows_of(const CodeMatrix& matrix, Ids ids, Pool& pool) {
    const std::size_t count = ids.shape(0), inputs = matrix.inputs(), size = kernels().code_block;
    for (std::size_t i = 0; i < count; ++i)
        require(ids.data()[i] >= 0 && static_cast<std::size_t>(ids.data()[i]) < matrix.outputs(),
                "id " + std::to_string(ids.data()[i]) + " of a table of " + text(matrix.outputs()) + " rows");
    NewMatrix out = new_matrix(count, inputs);
    nb::gil_scoped_release released;
    pool.run((count + 7) / 8, [&](std::size_t piece) {
        for (std::size_t i = 8 * piece; i < std::min(count, 8 * piece + 8); ++i) {
            const std::size_t id = static_cast<std::size_t>(ids.data()[i]);
            kernels().dequantize_row(matrix.layout(), matrix.block(id / size), id % size, inputs,
                                     out.data() + i * inputs);
        }
    });
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
             "Outputs from `first` on: codes (rows, inputs) uint8, scales and minima (rows, groups).")
        .def("rows", &rows_of, nb::arg("ids").noconvert(), nb::arg("pool"),
             "The named outputs' weights as float32 (ids, inputs); ids are int64.")
        .def_prop_ro("outputs", &CodeMatrix::outputs)
        .def_prop_ro("inputs", &CodeMatrix::inputs)
        .def_prop_ro("groups", &CodeMatrix::groups)
        .def_prop_ro("nbytes", &CodeMatrix::bytes);
    module.def("linear_codes", &linear_codes, nb::arg("x").noconvert(), nb::arg("parts"), nb::arg("bias").none(),
               nb::arg("pool"),
               "x (rows, inputs) times the parts' outputs one after the other, plus bias: float32, a new "
               "array. Activations are rounded to int8 in groups of 32, or by the row where a channel has "
               "one scale. Raises ValueError where sizes differ.");
}

}  // namespace octavo
