// Products with packed float32 and bf16 weights.
//
// Owns: the layout of packed weights, packing and unpacking rows, the products of a piece.
// Does not know: threads, the shape of a batch.
//
// Weights lie in blocks of BLOCK outputs, each block front to back as a product reads it:
//
//     float32  [input][BLOCK]          bf16  [pair of inputs][BLOCK][2]
//
// so that one load feeds a vector of outputs and one input, in all lanes, feeds a block. A tile is
// some rows by a block, its sums in registers. Each sum runs over the inputs in order, by itself:
// neither the tile that it is in nor the number of rows changes it.
#pragma once

#include "bf16.hpp"

namespace octavo::OCTAVO_ISA {

// A block is as many vectors as leave registers for the sums of ROWS rows.
#if defined(__AVX512F__)
constexpr int WIDE = 4, ROWS = 6;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int WIDE = 2, ROWS = 6;
#else
constexpr int WIDE = 1, ROWS = 3;
#endif
constexpr std::size_t BLOCK = WIDE * V::N;

// Blocks that few rows take at once: a sum waits for its own last addition, and there must be sums
// enough to fill that time. Three rows by two blocks would need more registers than AVX2 has.
constexpr int blocks_at_once(int rows) {
    return WIDE == 4 ? 1 : rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

// Bytes that weights are asked for ahead of their use, in each of `blocks` blocks: they come straight
// from memory. The later tiles of a block find them in the cache; asking nevertheless costs nothing.
constexpr std::size_t ahead(int blocks) { return blocks == 4 ? 1024 : blocks == 2 ? 1536 : 2560; }

template <int B>
inline void prefetch(const void* p) {
    for (std::size_t line = 0; line < BLOCK * 4; line += 64)
        __builtin_prefetch(static_cast<const char*>(p) + ahead(B) + line);
}

// sums[r][c] += one input of each of R rows, `stride` apart, times column(c), V::N outputs' weights.
template <int R, int C, class Column>
[[gnu::always_inline]] inline void multiply(V (&sums)[R][C], const float* x, std::size_t stride,
                                            const Column& column) {
    V w[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) w[c] = column(c);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const V a = V::set(x[r * stride]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[r][c] = fma(a, w[c], sums[r][c]);
    }
}

struct FloatWeights {
    using Input = float;
    using Value = float;
    static std::size_t block_values(std::size_t inputs) { return inputs * BLOCK; }

    template <int R, int B>
    static void add(V (&sums)[R][B * WIDE], const float* x, std::size_t stride, std::size_t inputs,
                    const float* block) {
        const std::size_t size = block_values(inputs);
        for (std::size_t k = 0; k < inputs; ++k, ++x, block += BLOCK) {
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) prefetch<B>(block + b * size);
            multiply(sums, x, stride, [&](int c) __attribute__((always_inline)) {
                return V::load(block + c / WIDE * size + c % WIDE * V::N);
            });
        }
    }
};

struct Bf16Weights {
    using Value = std::uint16_t;
    static std::size_t block_values(std::size_t inputs) { return (inputs + 1) / 2 * 2 * BLOCK; }

#if defined(__AVX512BF16__)
    // Rows are bf16 as well, padded to an even number of inputs.
    using Input = std::uint16_t;

    template <int R, int B>
    static void add(V (&sums)[R][B * WIDE], const std::uint16_t* x, std::size_t stride,
                    std::size_t inputs, const std::uint16_t* block) {
        const std::size_t size = block_values(inputs);
        for (std::size_t k = 0; k < inputs; k += 2, block += 2 * BLOCK) {
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) prefetch<B>(block + b * size);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int c = 0; c < B * WIDE; ++c)
                    sums[r][c] = dot_pairs(sums[r][c], x + r * stride + k,
                                           block + c / WIDE * size + c % WIDE * 2 * V::N);
        }
    }
#else
    using Input = float;

    template <int R, int B>
    static void add(V (&sums)[R][B * WIDE], const float* x, std::size_t stride, std::size_t inputs,
                    const std::uint16_t* block) {
        const std::size_t size = block_values(inputs);
        const auto one = [&](V (*half)(const std::uint16_t*)) __attribute__((always_inline)) {
            multiply(sums, x++, stride, [&](int c) __attribute__((always_inline)) {
                return half(block + c / WIDE * size + c % WIDE * 2 * V::N);
            });
        };
        std::size_t k = 0;
        for (; k + 2 <= inputs; k += 2, block += 2 * BLOCK) {
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) prefetch<B>(block + b * size);
            one(first_of_pairs);
            one(second_of_pairs);
        }
        if (k < inputs) one(first_of_pairs);
    }
#endif
};

// What a piece is: `rows` rows of x times the packed weights of `outputs` outputs.
template <class Kind>
struct Product {
    const typename Kind::Input* x;
    std::size_t stride, inputs;
    const typename Kind::Value* weights;
    const float* bias;  // null: none
    float* out;
    std::size_t outputs, out_stride;
};

// The sums of `rows` rows by `blocks` blocks, plus the bias, into the product.
template <class Kind>
void finish(const Product<Kind>& p, const float* sums, std::size_t row, std::size_t rows,
            std::size_t block, std::size_t blocks) {
    const std::size_t begin = block * BLOCK, width = blocks * BLOCK;
    const std::size_t count = p.outputs - begin < width ? p.outputs - begin : width;
    for (std::size_t r = 0; r < rows; ++r, sums += width) {
        float* const out = p.out + (row + r) * p.out_stride + begin;
        std::size_t c = 0;
        for (; c + V::N <= count; c += V::N) {
            const V sum = V::load(sums + c);
            (p.bias == nullptr ? sum : sum + V::load(p.bias + begin + c)).store(out + c);
        }
        for (; c < count; ++c) out[c] = p.bias == nullptr ? sums[c] : sums[c] + p.bias[begin + c];
    }
}

template <class Kind, int R, int B>
void tile(const Product<Kind>& p, std::size_t row, std::size_t block) {
    V sums[R][B * WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < B * WIDE; ++c) sums[r][c] = V::zero();
    Kind::template add<R, B>(sums, p.x + row * p.stride, p.stride, p.inputs,
                             p.weights + block * Kind::block_values(p.inputs));
    // Through memory, so that what comes after the sums is compiled once, not for every tile.
    alignas(64) float values[R * B * BLOCK];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < B * WIDE; ++c) sums[r][c].store(values + r * B * BLOCK + c * V::N);
    finish(p, values, row, R, block, B);
}

// One tile of `rows` rows; `several`: over blocks_at_once(rows) blocks.
template <class Kind, int R = ROWS>
void any_tile(const Product<Kind>& p, std::size_t row, std::size_t rows, std::size_t block,
              bool several) {
    if constexpr (R > 0) {
        if (rows != R) return any_tile<Kind, R - 1>(p, row, rows, block, several);
        several ? tile<Kind, R, blocks_at_once(R)>(p, row, block) : tile<Kind, R, 1>(p, row, block);
    }
}

template <class Kind>
void product(const Product<Kind>& p, std::size_t rows) {
    // Tiles that differ by one row at most: a last one of a single row would cost as much as six.
    const std::size_t tiles = (rows + ROWS - 1) / ROWS, blocks = (p.outputs + BLOCK - 1) / BLOCK;
    const std::size_t step = tiles > 1 ? 1 : blocks_at_once(static_cast<int>(rows));
    for (std::size_t block = 0; block < blocks;) {
        const bool several = block + step <= blocks;
        for (std::size_t t = 0; t < tiles; ++t) {
            const std::size_t row = rows * t / tiles;
            any_tile<Kind>(p, row, rows * (t + 1) / tiles - row, block, several && step > 1);
        }
        block += several ? step : 1;
    }
}

inline void linear_f32(const float* x, std::size_t rows, std::size_t inputs, const float* weights,
                       const float* bias, float* out, std::size_t outputs, std::size_t out_stride) {
    product<FloatWeights>({x, inputs, inputs, weights, bias, out, outputs, out_stride}, rows);
}

inline void linear_bf16(const void* x, std::size_t rows, std::size_t stride, std::size_t inputs,
                        const std::uint16_t* weights, const float* bias, float* out,
                        std::size_t outputs, std::size_t out_stride) {
    const auto* values = static_cast<const Bf16Weights::Input*>(x);
    product<Bf16Weights>({values, stride, inputs, weights, bias, out, outputs, out_stride}, rows);
}

// Packing: `count` rows of weights become the outputs from `column` on of one block.

inline void pack_f32(const float* rows, std::size_t count, std::size_t inputs, std::size_t column,
                     float* block) {
    for (std::size_t k = 0; k < inputs; ++k)
        for (std::size_t j = 0; j < count; ++j)
            block[k * BLOCK + column + j] = rows[j * inputs + k];
}

inline void pack_bf16(const std::uint16_t* rows, std::size_t count, std::size_t inputs,
                      std::size_t column, std::uint16_t* block) {
    for (std::size_t k = 0; k < inputs; ++k)
        for (std::size_t j = 0; j < count; ++j)
            block[(k / 2 * BLOCK + column + j) * 2 + k % 2] = rows[j * inputs + k];
}

// One output's weights, in float32.

inline void unpack_f32(const float* block, std::size_t column, std::size_t inputs, float* out) {
    for (std::size_t k = 0; k < inputs; ++k) out[k] = block[k * BLOCK + column];
}

inline void unpack_bf16(const std::uint16_t* block, std::size_t column, std::size_t inputs,
                        float* out) {
    for (std::size_t k = 0; k < inputs; ++k)
        out[k] = bf16_to_float(block[(k / 2 * BLOCK + column) * 2 + k % 2]);
}

inline void floats_to_bf16(const float* from, std::uint16_t* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = float_to_bf16(from[i]);
}

inline void bf16_to_floats(const std::uint16_t* from, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = bf16_to_float(from[i]);
}

}  // namespace octavo::OCTAVO_ISA
