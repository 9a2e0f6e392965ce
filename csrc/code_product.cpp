#include "code_product.hpp"

#include <algorithm>
#include <cstring>

#include "kernels.hpp"

namespace octavo {

namespace {

// Memory that a product's activations need, kept from call to call: it grows to the largest batch.
struct Scratch {
    std::vector<std::uint8_t> codes;
    std::vector<float> scales, sums;
    std::vector<std::int32_t> multipliers, offsets;
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

// Of a row of activations: float scales, and groups that have a sum.
std::size_t scale_count(const CodeLayout& layout) {
    return layout.group == 0 ? (layout.inputs + CHANNEL_SPAN - 1) / CHANNEL_SPAN : layout.inputs / 32;
}
std::size_t group_count(const CodeLayout& layout) {
    return layout.group == 0 ? scale_count(layout) : layout.inputs / static_cast<std::size_t>(layout.group);
}

// The activations of the tile that begins at `row`.
CodeActivations tile_at(Scratch& scratch, const CodeLayout& layout, std::size_t row) {
    const std::size_t step = kernels().code_wide(layout.kind) ? 2 : 1;
    const std::size_t groups = group_count(layout);
    return {scratch.codes.data() + row * layout.inputs * step,
            scratch.multipliers.data() + row * layout.inputs / 16,
            scratch.scales.data() + row * scale_count(layout), scratch.offsets.data() + row * groups,
            scratch.sums.data() + row * groups};
}

template <class T>
void reserve(std::vector<T>& values, std::size_t count) {
    if (values.size() < count) values.resize(count);
}

void quantize(const float* x, std::size_t rows, const CodeMatrix& matrix, Scratch& scratch, Pool& pool) {
    const CodeLayout& layout = matrix.layout();
    const std::size_t inputs = matrix.inputs(), tile = kernels().code_tile;
    const std::size_t groups = group_count(layout);
    reserve(scratch.codes, rows * layout.inputs * (kernels().code_wide(layout.kind) ? 2 : 1));
    reserve(scratch.multipliers, rows * layout.inputs / 16);
    reserve(scratch.scales, rows * scale_count(layout));
    reserve(scratch.offsets, rows * groups);
    reserve(scratch.sums, rows * groups);
    const std::vector<std::uint32_t>& order = matrix.order();
    const bool padded = inputs != layout.inputs || !order.empty();
    if (padded) reserve(scratch.padded, rows * layout.inputs);
    const auto one = [&](std::size_t r) {
        const float* from = x + r * inputs;
        if (padded) {
            float* copy = scratch.padded.data() + r * layout.inputs;
            if (order.empty())
                std::memcpy(copy, from, inputs * sizeof(float));
            else
                for (std::size_t i = 0; i < inputs; ++i) copy[i] = from[order[i]];
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

}  // namespace

void multiply_codes(const float* x, std::size_t rows, const std::vector<const CodeMatrix*>& parts,
                    const float* bias, float* out, std::size_t stride, Pool& pool) {
    static thread_local Scratch scratch;
    Scratch& own = scratch;  // the caller's, also where its pieces run on other threads
    const CodeMatrix* last = nullptr;
    std::size_t column = 0;
    for (const CodeMatrix* part : parts) {
        if (last == nullptr || !(form_of(last->layout()) == form_of(part->layout())) ||
            last->order() != part->order())
            quantize(x, rows, *part, own, pool);
        multiply(*part, own, rows, bias ? bias + column : nullptr, out + column, stride, pool);
        column += part->outputs();
        last = part;
    }
}

void embed_codes(const CodeMatrix& matrix, const std::int64_t* ids, std::size_t count, float* out, Pool& pool) {
    const std::size_t inputs = matrix.inputs(), size = kernels().code_block;
    pool.run((count + 7) / 8, [&](std::size_t piece) {
        for (std::size_t i = 8 * piece; i < std::min(count, 8 * piece + 8); ++i) {
            const std::size_t id = static_cast<std::size_t>(ids[i]);
            float* const to = out + i * inputs;
            kernels().dequantize_row(matrix.layout(), matrix.block(id / size), id % size, inputs, to);
            if (matrix.order().empty()) continue;
            const std::vector<float> columns(to, to + inputs);
            for (std::size_t j = 0; j < inputs; ++j) to[matrix.order()[j]] = columns[j];
        }
    });
}

}  // namespace octavo
