#include "float_weight.hpp"

#include <algorithm>

#include "kernels.hpp"

namespace octavo {

namespace {

// Outputs are padded to this, whatever the instruction set's block: the size is known beforehand.
constexpr std::size_t PADDED = 64;
// Outputs of a piece: some microseconds for one row, large enough to claim.
constexpr std::size_t PIECE = 64;
// From so many rows on, pieces as few as this are halved, lest a thread waits for another's last one.
constexpr std::size_t MANY_ROWS = 6, FEW_PIECES = 32;
// Bytes of inputs that the rows of a piece may have, to stay in the second cache.
constexpr std::size_t ROWS_BYTES = 256 * 1024;
constexpr std::size_t MOST_PIECES = std::size_t{1} << 23;

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

std::size_t block_begin(std::size_t at) {
    return at / kernels().linear_block * kernels().linear_block;
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

// Calls work(row, rows, first output, last output) for pieces whose rows stay in the cache. Pieces
// of the same outputs come one after the other, so that their weights are read from memory once.
template <class Work>
void in_pieces(std::size_t rows, std::size_t row_bytes, std::size_t outputs, Pool& pool, Work&& work) {
    const std::size_t most = std::max<std::size_t>(24, ROWS_BYTES / row_bytes);
    const std::size_t spans = divide_up(rows, most);
    std::size_t wide = PIECE;
    if (rows >= MANY_ROWS && divide_up(outputs, wide) * spans < FEW_PIECES)
        wide = std::max<std::size_t>(PIECE / 2, kernels().linear_block);
    while (divide_up(outputs, wide) * spans > MOST_PIECES) wide *= 2;
    pool.run(divide_up(outputs, wide) * spans, [&](std::size_t i) {
        const std::size_t first = i / spans * wide, span = i % spans;
        const std::size_t row = rows * span / spans;
        work(row, rows * (span + 1) / spans - row, first, std::min(first + wide, outputs));
    });
}

}  // namespace

FloatWeight::FloatWeight(std::size_t outputs, std::size_t inputs, bool half)
    : outputs_(outputs), inputs_(inputs), half_(half) {
    data_ = Buffer(divide_up(outputs, PADDED) * PADDED * output_bytes());
}

std::size_t FloatWeight::output_bytes() const {
    return half_ ? even_inputs() * sizeof(std::uint16_t) : inputs_ * sizeof(float);
}

// The block that output `at` lies in.
const float* FloatWeight::floats(std::size_t at) const {
    return data_.as<float>() + block_begin(at) * inputs_;
}
const std::uint16_t* FloatWeight::halves(std::size_t at) const {
    return data_.as<std::uint16_t>() + block_begin(at) * even_inputs();
}

void FloatWeight::pack(const float* rows, std::size_t count, std::size_t at) {
    kernels().pack_f32(rows, count, inputs_, at % kernels().linear_block, const_cast<float*>(floats(at)));
}
void FloatWeight::pack(const std::uint16_t* rows, std::size_t count, std::size_t at) {
    kernels().pack_bf16(rows, count, inputs_, at % kernels().linear_block,
                        const_cast<std::uint16_t*>(halves(at)));
}

void FloatWeight::pack_floats(std::size_t first, const float* rows, std::size_t count) {
    std::vector<std::uint16_t> rounded(half_ ? kernels().linear_block * inputs_ : 0);
    each_block(first, count, [&](std::size_t row, std::size_t some, std::size_t at) {
        const float* from = rows + row * inputs_;
        if (half_) {
            kernels().floats_to_bf16(from, rounded.data(), some * inputs_);
            pack(rounded.data(), some, at);
        } else {
            pack(from, some, at);
        }
    });
}

void FloatWeight::pack_halves(std::size_t first, const std::uint16_t* rows, std::size_t count) {
    std::vector<float> widened(half_ ? 0 : kernels().linear_block * inputs_);
    each_block(first, count, [&](std::size_t row, std::size_t some, std::size_t at) {
        const std::uint16_t* from = rows + row * inputs_;
        if (half_) {
            pack(from, some, at);
        } else {
            kernels().bf16_to_floats(from, widened.data(), some * inputs_);
            pack(widened.data(), some, at);
        }
    });
}

void FloatWeight::multiply(const float* x, std::size_t rows, float* out, std::size_t stride, Pool& pool) const {
    const Kernels& table = kernels();
    const auto multiply_bf16 = [&](const void* from, std::size_t count, std::size_t from_stride,
                                   std::size_t first, std::size_t last, float* to) {
        table.linear_bf16(from, count, from_stride, inputs_, halves(first), bias(first), to + first,
                          last - first, stride);
    };
    if (half_ && table.bf16_inputs) {
        // Kept from call to call: it grows to the largest batch.
        static thread_local std::vector<std::uint16_t> scratch;
        const std::size_t even = even_inputs();
        if (scratch.size() < rows * even) scratch.resize(rows * even);
        std::uint16_t* const rounded = scratch.data();
        pool.run(rows, [&](std::size_t row) {
            table.floats_to_bf16(x + row * inputs_, rounded + row * even, inputs_);
            if (even != inputs_) rounded[row * even + inputs_] = 0;
        });
        in_pieces(rows, even * sizeof(std::uint16_t), outputs_, pool,
                  [&](std::size_t row, std::size_t count, std::size_t first, std::size_t last) {
                      multiply_bf16(rounded + row * even, count, even, first, last, out + row * stride);
                  });
        return;
    }
    in_pieces(rows, inputs_ * sizeof(float), outputs_, pool,
              [&](std::size_t row, std::size_t count, std::size_t first, std::size_t last) {
                  const float* from = x + row * inputs_;
                  float* to = out + row * stride;
                  if (half_)
                      multiply_bf16(from, count, inputs_, first, last, to);
                  else
                      table.linear_f32(from, count, inputs_, floats(first), bias(first), to + first,
                                       last - first, stride);
              });
}

void FloatWeight::embed(const std::int64_t* ids, std::size_t count, float* out, Pool& pool) const {
    pool.run(count, [&](std::size_t i) {
        const std::size_t at = static_cast<std::size_t>(ids[i]), column = at % kernels().linear_block;
        float* to = out + i * inputs_;
        half_ ? kernels().unpack_bf16(halves(at), column, inputs_, to)
              : kernels().unpack_f32(floats(at), column, inputs_, to);
    });
}

}  // namespace octavo
