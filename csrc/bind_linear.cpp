// Packed float32 and bf16 weights, their products and the lookup of their rows, over numpy arrays.
//
// Owns: `FloatWeight`, the memory of packed weights, and how a product is cut into pieces.
// Does not know: the layout within a block (kernels/linear_float.hpp), files, models.
#include "bind.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <nanobind/stl/string.h>

#include "buffer.hpp"
#include "kernels.hpp"

namespace octavo {

namespace {

using Halves = nb::ndarray<const std::uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Outputs are padded to this, whatever the instruction set's block: the size is known beforehand.
constexpr std::size_t PADDED = 64;
// Outputs of a piece: some microseconds for one row, large enough to claim.
constexpr std::size_t PIECE = 64;
// Bytes of inputs that the rows of a piece may have, to stay in the second cache.
constexpr std::size_t ROWS_BYTES = 256 * 1024;
constexpr std::size_t MOST = std::size_t{1} << 30;
constexpr std::size_t MOST_PIECES = std::size_t{1} << 23;

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

std::string text(std::size_t n) { return std::to_string(n); }

class FloatWeight {
public:
    FloatWeight(std::size_t outputs, std::size_t inputs, const std::string& format)
        : outputs_(outputs), inputs_(inputs), half_(format == "bf16") {
        require(half_ || format == "f32", "format is '" + format + "'; it must be f32 or bf16");
        require(outputs > 0 && inputs > 0 && outputs <= MOST && inputs <= MOST,
                "a weight of " + text(outputs) + " outputs and " + text(inputs) + " inputs");
        data_ = Buffer(divide_up(outputs, PADDED) * PADDED * output_bytes());
    }

    std::size_t outputs() const { return outputs_; }
    std::size_t inputs() const { return inputs_; }
    const char* format() const { return half_ ? "bf16" : "f32"; }
    std::size_t bytes() const { return data_.bytes() + bias_.size() * sizeof(float); }

    void set_bias(Vector bias) {
        require(bias.shape(0) == outputs_,
                text(bias.shape(0)) + " values for " + text(outputs_) + " outputs");
        bias_.assign(bias.data(), bias.data() + outputs_);
    }

    void pack_floats(std::size_t first, Matrix rows) {
        check_rows(first, rows.shape(0), rows.shape(1));
        nb::gil_scoped_release released;
        std::vector<std::uint16_t> rounded(half_ ? kernels().linear_block * inputs_ : 0);
        each_block(first, rows.shape(0), [&](std::size_t row, std::size_t count, std::size_t at) {
            const float* from = rows.data() + row * inputs_;
            if (half_) {
                kernels().floats_to_bf16(from, rounded.data(), count * inputs_);
                pack(rounded.data(), count, at);
            } else {
                pack(from, count, at);
            }
        });
    }

    void pack_halves(std::size_t first, Halves rows) {
        check_rows(first, rows.shape(0), rows.shape(1));
        nb::gil_scoped_release released;
        std::vector<float> widened(half_ ? 0 : kernels().linear_block * inputs_);
        each_block(first, rows.shape(0), [&](std::size_t row, std::size_t count, std::size_t at) {
            const std::uint16_t* from = rows.data() + row * inputs_;
            if (half_) {
                pack(from, count, at);
            } else {
                kernels().bf16_to_floats(from, widened.data(), count * inputs_);
                pack(widened.data(), count, at);
            }
        });
    }

    NewMatrix linear(Matrix x, Pool& pool) const {
        const std::size_t rows = x.shape(0);
        require(x.shape(1) == inputs_,
                "rows of " + text(x.shape(1)) + " values for " + text(inputs_) + " inputs");
        NewMatrix out = new_matrix(rows, outputs_);
        if (rows == 0) return out;
        nb::gil_scoped_release released;
        if (half_ && kernels().bf16_inputs) {
            const std::vector<std::uint16_t> rounded = round(x, pool);
            const std::size_t stride = even_inputs();
            in_pieces(rows, stride * sizeof(std::uint16_t), pool,
                      [&](std::size_t row, std::size_t count, std::size_t first, std::size_t last) {
                          multiply_bf16(rounded.data() + row * stride, count, stride, first, last,
                                        out.data() + row * outputs_);
                      });
        } else {
            in_pieces(rows, inputs_ * sizeof(float), pool,
                      [&](std::size_t row, std::size_t count, std::size_t first, std::size_t last) {
                          const float* from = x.data() + row * inputs_;
                          float* to = out.data() + row * outputs_;
                          half_ ? multiply_bf16(from, count, inputs_, first, last, to)
                                : multiply_f32(from, count, first, last, to);
                      });
        }
        return out;
    }

    NewMatrix embed(Ids ids, Pool& pool) const {
        const std::size_t count = ids.shape(0);
        for (std::size_t i = 0; i < count; ++i)
            require(ids.data()[i] >= 0 && static_cast<std::size_t>(ids.data()[i]) < outputs_,
                    "id " + std::to_string(ids.data()[i]) + " is outside a table of " +
                        text(outputs_) + " rows");
        NewMatrix out = new_matrix(count, inputs_);
        nb::gil_scoped_release released;
        pool.run(count, [&](std::size_t i) {
            const std::size_t at = static_cast<std::size_t>(ids.data()[i]);
            const std::size_t column = at % kernels().linear_block;
            float* to = out.data() + i * inputs_;
            half_ ? kernels().unpack_bf16(halves(at), column, inputs_, to)
                  : kernels().unpack_f32(floats(at), column, inputs_, to);
        });
        return out;
    }

private:
    std::size_t even_inputs() const { return divide_up(inputs_, 2) * 2; }
    std::size_t output_bytes() const {
        return half_ ? even_inputs() * sizeof(std::uint16_t) : inputs_ * sizeof(float);
    }

    // The block that output `at` lies in.
    std::size_t block_begin(std::size_t at) const { return at / kernels().linear_block * kernels().linear_block; }
    const float* floats(std::size_t at) const { return data_.as<float>() + block_begin(at) * inputs_; }
    const std::uint16_t* halves(std::size_t at) const {
        return data_.as<std::uint16_t>() + block_begin(at) * even_inputs();
    }

    void pack(const float* rows, std::size_t count, std::size_t at) {
        kernels().pack_f32(rows, count, inputs_, at % kernels().linear_block,
                           const_cast<float*>(floats(at)));
    }
    void pack(const std::uint16_t* rows, std::size_t count, std::size_t at) {
        kernels().pack_bf16(rows, count, inputs_, at % kernels().linear_block,
                            const_cast<std::uint16_t*>(halves(at)));
    }

    void check_rows(std::size_t first, std::size_t count, std::size_t width) const {
        require(width == inputs_, "rows of " + text(width) + " values for " + text(inputs_) + " inputs");
        require(first <= outputs_ && count <= outputs_ - first,
                text(count) + " rows from " + text(first) + " on do not fit into " + text(outputs_));
    }

    // Calls work(row, count, output) for each part of the rows that lies in one block.
    template <class Work>
    void each_block(std::size_t first, std::size_t rows, Work&& work) {
        const std::size_t block = kernels().linear_block;
        for (std::size_t row = 0; row < rows;) {
            const std::size_t count = std::min(rows - row, block - (first + row) % block);
            work(row, count, first + row);
            row += count;
        }
    }

    std::vector<std::uint16_t> round(const Matrix& x, Pool& pool) const {
        const std::size_t stride = even_inputs();
        std::vector<std::uint16_t> rounded(x.shape(0) * stride);
        pool.run(x.shape(0), [&](std::size_t row) {
            kernels().floats_to_bf16(x.data() + row * inputs_, rounded.data() + row * stride, inputs_);
        });
        return rounded;
    }

    // Calls work(row, rows, first output, last output) for pieces whose rows stay in the cache. Pieces
    // of the same outputs come one after the other, so that their weights are read from memory once.
    template <class Work>
    void in_pieces(std::size_t rows, std::size_t row_bytes, Pool& pool, Work&& work) const {
        const std::size_t most = std::max<std::size_t>(24, ROWS_BYTES / row_bytes);
        const std::size_t spans = divide_up(rows, most);
        std::size_t wide = PIECE;
        while (divide_up(outputs_, wide) * spans > MOST_PIECES) wide *= 2;
        pool.run(divide_up(outputs_, wide) * spans, [&](std::size_t i) {
            const std::size_t first = i / spans * wide, span = i % spans;
            const std::size_t row = rows * span / spans;
            work(row, rows * (span + 1) / spans - row, first, std::min(first + wide, outputs_));
        });
    }

    const float* bias(std::size_t first) const { return bias_.empty() ? nullptr : bias_.data() + first; }

    void multiply_f32(const float* x, std::size_t rows, std::size_t first, std::size_t last,
                      float* out) const {
        kernels().linear_f32(x, rows, inputs_, floats(first), bias(first), out + first, last - first,
                             outputs_);
    }
    void multiply_bf16(const void* x, std::size_t rows, std::size_t stride, std::size_t first,
                       std::size_t last, float* out) const {
        kernels().linear_bf16(x, rows, stride, inputs_, halves(first), bias(first), out + first,
                              last - first, outputs_);
    }

    std::size_t outputs_, inputs_;
    bool half_;
    Buffer data_;
    std::vector<float> bias_;
};

}  // namespace

void bind_linear(nb::module_& module) {
    nb::class_<FloatWeight>(module, "FloatWeight",
                            "A matrix (outputs, inputs), packed as float32 or bf16, and its bias.")
        .def(nb::init<std::size_t, std::size_t, const std::string&>(), nb::arg("outputs"),
             nb::arg("inputs"), nb::arg("format"), "All zero. `format` is \"f32\" or \"bf16\".")
        .def("set_bias", &FloatWeight::set_bias, nb::arg("bias").noconvert(), "(outputs,) float32.")
        .def("pack_floats", &FloatWeight::pack_floats, nb::arg("first"), nb::arg("rows").noconvert(),
             "Rows (count, inputs) float32 become the outputs from `first` on; bf16 rounds to "
             "nearest, ties to even. Threads may pack different rows at once.")
        .def("pack_halves", &FloatWeight::pack_halves, nb::arg("first"), nb::arg("rows").noconvert(),
             "The same from bf16 values as uint16: exact in either format.")
        .def("linear", &FloatWeight::linear, nb::arg("x").noconvert(), nb::arg("pool"),
             "x (rows, inputs) float32 times the weights, plus the bias: (rows, outputs), new. A "
             "row's values depend on that row alone.")
        .def("embed", &FloatWeight::embed, nb::arg("ids").noconvert(), nb::arg("pool"),
             "Rows `ids` (int64) of the table: (ids, inputs) float32, new.")
        .def_prop_ro("outputs", &FloatWeight::outputs)
        .def_prop_ro("inputs", &FloatWeight::inputs)
        .def_prop_ro("format", &FloatWeight::format)
        .def_prop_ro("bytes", &FloatWeight::bytes);
}

}  // namespace octavo
