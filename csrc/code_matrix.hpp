// A matrix of codes, packed.
//
// Owns: the memory, and putting rows of weights in their places.
// Does not know: threads, Python, arithmetic on activations. It checks nothing: its callers do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "code_sources.hpp"
#include "kernels.hpp"

namespace octavo {

class CodeMatrix {
public:
    CodeMatrix(const CodeFormat& format, std::size_t outputs, std::size_t inputs);

    const CodeFormat& format() const { return *format_; }
    const CodeLayout& layout() const { return layout_; }
    std::size_t outputs() const { return outputs_; }
    std::size_t inputs() const { return inputs_; }
    std::size_t bytes() const { return buffer_.bytes(); }
    std::size_t block_bytes() const { return block_bytes_; }
    std::size_t blocks() const { return (outputs_ + kernels().code_block - 1) / kernels().code_block; }
    std::size_t groups() const { return layout_.group == 0 ? 1 : layout_.inputs / layout_.group; }
    // The inputs in the order in which they are packed and grouped; empty: their own.
    const std::vector<std::uint32_t>& order() const { return order_; }
    void set_order(std::vector<std::uint32_t> order) { order_ = std::move(order); }
    const std::uint8_t* block(std::size_t i) const { return buffer_.as<std::uint8_t>() + i * block_bytes_; }

    // Outputs from `first` on, from rows in the format's own bytes, or as codes and scales: (rows,
    // inputs), (rows, groups), (rows, groups) or null. Codes come in the inputs' own order.
    void put_source(std::size_t first, std::size_t rows, const std::uint8_t* source);
    void put_codes(std::size_t first, std::size_t rows, const std::uint8_t* codes, const float* scales,
                   const float* minima);

private:
    void put(std::size_t output, const CodeRow& row);

    const CodeFormat* format_;
    CodeLayout layout_;
    std::size_t outputs_;
    std::size_t inputs_;
    std::size_t block_bytes_;
    Buffer buffer_;
    std::vector<std::uint32_t> order_;
};

}  // namespace octavo
