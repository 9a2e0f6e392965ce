#include "code_matrix.hpp"

#include <cstring>

namespace octavo {

namespace {

// Only for floats that were float16 before or were rounded to it: the value is kept exactly.
std::uint16_t exact_half(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    const std::uint32_t exponent = bits >> 23 & 255u, mantissa = bits & 0x7fffffu;
    if (exponent == 255) return static_cast<std::uint16_t>(sign | 0x7c00u | mantissa >> 13);
    if (exponent >= 113) return static_cast<std::uint16_t>(sign | (exponent - 112) << 10 | mantissa >> 13);
    if (exponent < 102) return sign;  // zero: the least denormal has exponent 103
    return static_cast<std::uint16_t>(sign | (mantissa | 0x800000u) >> (126 - exponent));
}

std::size_t record_bytes(const CodeLayout& layout) {
    const std::size_t block = kernels().code_block;
    const std::size_t group = layout.group == 0 ? layout.inputs : static_cast<std::size_t>(layout.group);
    const bool nibble = layout.kind == NIBBLE || layout.kind == NIBBLE_TABLE;
    return group * block / (nibble ? 2 : 1) + block * (layout.half ? 2 : 4) * (layout.minimum ? 2 : 1);
}

}  // namespace

CodeMatrix::CodeMatrix(const CodeFormat& format, std::size_t outputs, std::size_t inputs)
    : format_(&format), layout_(format.layout), outputs_(outputs), inputs_(inputs) {
    layout_.inputs = (inputs + 31) / 32 * 32;
    block_bytes_ = record_bytes(layout_) * groups();
    buffer_ = Buffer(blocks() * block_bytes_);
}

void CodeMatrix::put_source(std::size_t first, std::size_t rows, const std::uint8_t* source) {
    const std::size_t blocks = inputs_ / format_->block_weights;
    std::vector<std::uint8_t> codes(layout_.inputs);
    std::vector<float> scales(groups()), minima(groups());
    for (std::size_t r = 0; r < rows; ++r) {
        const CodeRow row{codes.data(), scales.data(), minima.data()};
        format_->read(source + r * blocks * format_->block_bytes, blocks, row);
        put(first + r, row);
    }
}

void CodeMatrix::put_codes(std::size_t first, std::size_t rows, const std::uint8_t* codes,
                           const float* scales, const float* minima) {
    std::vector<std::uint8_t> row_codes(layout_.inputs);
    std::vector<float> row_scales(groups()), row_minima(groups());
    for (std::size_t r = 0; r < rows; ++r) {
        if (order_.empty())
            std::memcpy(row_codes.data(), codes + r * inputs_, inputs_);
        else
            for (std::size_t i = 0; i < inputs_; ++i) row_codes[i] = codes[r * inputs_ + order_[i]];
        std::memcpy(row_scales.data(), scales + r * groups(), groups() * sizeof(float));
        if (minima) std::memcpy(row_minima.data(), minima + r * groups(), groups() * sizeof(float));
        put(first + r, {row_codes.data(), row_scales.data(), row_minima.data()});
    }
}

void CodeMatrix::put(std::size_t output, const CodeRow& row) {
    const std::size_t size = kernels().code_block;
    const std::size_t lane = output % size;
    const std::size_t group = layout_.group == 0 ? layout_.inputs : static_cast<std::size_t>(layout_.group);
    const bool nibble = layout_.kind == NIBBLE || layout_.kind == NIBBLE_TABLE;
    const std::size_t code_bytes = group * size / (nibble ? 2 : 1);
    const std::size_t width = layout_.half ? 2 : 4;
    std::uint8_t* record = buffer_.as<std::uint8_t>() + output / size * block_bytes_;
    const auto write = [&](std::uint8_t* to, float value) {
        const std::uint16_t half = exact_half(value);
        if (layout_.half)
            std::memcpy(to, &half, sizeof half);
        else
            std::memcpy(to, &value, sizeof value);
    };
    for (std::size_t g = 0; g < groups(); ++g, record += record_bytes(layout_)) {
        const std::uint8_t* codes = row.codes + g * group;
        std::uint8_t* to = record + lane * 4;
        if (nibble) {
            for (std::size_t i = 0; i < group; i += 8, to += size * 4)
                for (std::size_t k = 0; k < 4; ++k)
                    to[k] = static_cast<std::uint8_t>(codes[i + k] | codes[i + 4 + k] << 4);
        } else {
            for (std::size_t i = 0; i < group; i += 4, to += size * 4) std::memcpy(to, codes + i, 4);
        }
        write(record + code_bytes + lane * width, row.scales[g]);
        if (layout_.minimum) write(record + code_bytes + (size + lane) * width, row.minima[g]);
    }
}

}  // namespace octavo
