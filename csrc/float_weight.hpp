// Packed float32 and bf16 weights, and their products.
//
// Owns: the memory of packed weights, and how a product is cut into pieces.
// Does not know: the layout within a block (kernels/linear_float.hpp), Python, files, models. It
// checks nothing but what it is made of: its callers do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffer.hpp"
#include "pool.hpp"

namespace octavo {

class FloatWeight {
public:
    // All zero; bf16 if `half`, otherwise float32.
    FloatWeight(std::size_t outputs, std::size_t inputs, bool half);

    std::size_t outputs() const { return outputs_; }
    std::size_t inputs() const { return inputs_; }
    bool half() const { return half_; }
    std::size_t bytes() const { return data_.bytes() + bias_.size() * sizeof(float); }

    // (outputs) values.
    void set_bias(const float* bias) { bias_.assign(bias, bias + outputs_); }

    // Rows (count, inputs) become the outputs from `first` on, rounded where the weight is bf16.
    // Threads may pack different rows at once.
    void pack_floats(std::size_t first, const float* rows, std::size_t count);
    void pack_halves(std::size_t first, const std::uint16_t* rows, std::size_t count);

    // x (rows, inputs) times the weights, plus the bias, to rows of `out` that lie `stride` apart.
    void multiply(const float* x, std::size_t rows, float* out, std::size_t stride, Pool& pool) const;

    // Rows `ids` of the table, to `out` (count, inputs).
    void embed(const std::int64_t* ids, std::size_t count, float* out, Pool& pool) const;

private:
    std::size_t even_inputs() const { return (inputs_ + 1) / 2 * 2; }
    std::size_t output_bytes() const;
    const float* floats(std::size_t at) const;
    const std::uint16_t* halves(std::size_t at) const;
    const float* bias(std::size_t first) const { return bias_.empty() ? nullptr : bias_.data() + first; }
    void pack(const float* rows, std::size_t count, std::size_t at);
    void pack(const std::uint16_t* rows, std::size_t count, std::size_t at);

    std::size_t outputs_, inputs_;
    bool half_;
    Buffer data_;
    std::vector<float> bias_;
};

}  // namespace octavo
