// Products of quantised activations with packed codes.
//
// A tile of up to CODE_TILE rows meets a block of outputs. Sums within a group are of integers, and
// exact; groups are added in floats, front to back. So a row's result does not depend on its tile.
#pragma once

#include "code_simd.hpp"

namespace octavo::OCTAVO_ISA {

// Plain loops gain little from more rows, and each number of them is compiled for itself.
#if defined(__AVX2__)
constexpr int CODE_TILE = 4;
#else
constexpr int CODE_TILE = 2;
#endif
constexpr std::size_t CODE_BLOCK = CODE_VECTORS * V::N;
constexpr int CODES_AHEAD = 1536;  // bytes that are asked for before they are needed

// Adds `span` inputs' products of output vectors j .. j + Dot::AT_ONCE to `sum`; `multipliers` of the
// span's activations, or null where these have none.
template <CodeKind kind, int rows, int span, bool multiplied>
inline void add_span(const std::uint8_t* codes, const std::uint8_t* inputs, const std::int32_t* multipliers,
                     const std::uint8_t* table, int j, Ints (&sum)[rows][Dot<kind>::AT_ONCE]) {
    using D = Dot<kind>;
    constexpr int steps = span / 4, most = multiplied ? 4 : steps;
    constexpr int run = D::RUN < most ? D::RUN : most;
#pragma GCC unroll 8
    for (int first = 0; first < steps; first += run) {
        typename D::Partial part[rows][D::AT_ONCE];
        for (int r = 0; r < rows; ++r)
            for (int i = 0; i < D::AT_ONCE; ++i) part[r][i] = multiplied ? ints_zero() : sum[r][i];
#pragma GCC unroll 8
        for (int step = first; step < first + run; ++step) {
            typename D::Weights w[D::AT_ONCE];
            for (int i = 0; i < D::AT_ONCE; ++i) w[i] = D::widen(fetch<kind>(codes, step, j + i, table));
            for (int r = 0; r < rows; ++r) {
                const typename D::Inputs a = D::broadcast(inputs + (step * rows + r) * D::STEP);
                for (int i = 0; i < D::AT_ONCE; ++i) part[r][i] = D::add(part[r][i], w[i], a);
            }
        }
        for (int r = 0; r < rows; ++r)
            for (int i = 0; i < D::AT_ONCE; ++i)
                if constexpr (multiplied)
                    sum[r][i] = D::end(sum[r][i], part[r][i], multipliers[first / 4 * rows + r]);
                else
                    sum[r][i] = part[r][i];
    }
}

inline V load_scale(const std::uint8_t* p, bool half, std::size_t j) {
    return half ? load_half(p + j * V::N * 2) : V::load(reinterpret_cast<const float*>(p) + j * V::N);
}

template <int rows>
inline void store_tile(const V (&total)[rows][CODE_VECTORS], const float* bias, float* out,
                       std::size_t stride, std::size_t outputs) {
    for (int r = 0; r < rows; ++r)
        for (std::size_t j = 0; j < CODE_VECTORS; ++j) {
            const std::size_t at = j * V::N;
            if (at >= outputs) break;
            float* to = out + r * stride + at;
            const std::size_t left = outputs - at;
            if (left >= V::N)
                (bias ? total[r][j] + V::load(bias + at) : total[r][j]).store(to);
            else
                (bias ? total[r][j] + V::load_first(bias + at, left) : total[r][j]).store_first(to, left);
        }
}

// Rows of wide outputs lie far apart, often in the same set of the cache: the lines that are written at
// the end are asked for at the beginning, all at once.
template <int rows>
inline void begin_tile(float* out, std::size_t stride, V (&total)[rows][CODE_VECTORS]) {
    for (int r = 0; r < rows; ++r) {
        __builtin_prefetch(out + r * stride, 1);
        for (int j = 0; j < CODE_VECTORS; ++j) total[r][j] = V::zero();
    }
}

// One block of outputs, one tile of rows; scales for each group of `span` inputs.
template <CodeKind kind, int span, bool minimum, int rows>
void grouped_tile(const CodeLayout& layout, const std::uint8_t* block, const CodeActivations& a,
                  const float* bias, float* out, std::size_t stride, std::size_t outputs) {
    using D = Dot<kind>;
    constexpr std::size_t code_bytes = span * CODE_BLOCK / (is_nibble(kind) ? 2 : 1);
    const std::size_t scale_bytes = CODE_BLOCK * (layout.half ? 2 : 4);
    const std::size_t record = code_bytes + scale_bytes * (minimum ? 2 : 1);
    V total[rows][CODE_VECTORS];
    begin_tile<rows>(out, stride, total);
    const std::size_t groups = layout.inputs / span;
    for (std::size_t g = 0; g < groups; ++g, block += record) {
        for (std::size_t at = 0; at < record; at += 64) __builtin_prefetch(block + CODES_AHEAD + at);
        const std::uint8_t* inputs = a.codes + g * (span / 4) * rows * D::STEP;
        const std::int32_t* multipliers = a.multipliers + g * (span / 16) * rows;
        const float* scales = a.scales + g * span / 32 * rows;
        for (int j = 0; j < CODE_VECTORS; j += D::AT_ONCE) {
            Ints sum[rows][D::AT_ONCE];
            for (int r = 0; r < rows; ++r)
                for (int i = 0; i < D::AT_ONCE; ++i)
                    sum[r][i] = minimum ? ints_zero() : ints_set(a.offsets[g * rows + r]);
            add_span<kind, rows, span, D::STEP == 4>(block, inputs, multipliers, layout.table, j, sum);
            for (int i = 0; i < D::AT_ONCE; ++i) {
                const V scale = load_scale(block + code_bytes, layout.half, j + i);
                V least = V::zero();
                if (minimum) least = load_scale(block + code_bytes + scale_bytes, layout.half, j + i);
                if (minimum && layout.addend) least = least * scale;
                for (int r = 0; r < rows; ++r) {
                    V& to = total[r][j + i];
                    to = fma(to_float(sum[r][i]), scale * V::set(scales[r]), to);
                    if (minimum) to = fma(least, V::set(a.sums[g * rows + r]), to);
                }
            }
        }
    }
    store_tile<rows>(total, bias, out, stride, outputs);
}

// The same where a channel has one scale: it comes last, and only those of activations in between.
template <int rows>
void channel_tile(const CodeLayout& layout, const std::uint8_t* block, const CodeActivations& a,
                  const float* bias, float* out, std::size_t stride, std::size_t outputs) {
    using D = Dot<BYTE>;
    static_assert(D::AT_ONCE == CODE_VECTORS);
    constexpr std::size_t record = 32 * CODE_BLOCK;
    V total[rows][CODE_VECTORS];
    begin_tile<rows>(out, stride, total);
    const std::uint8_t* inputs = a.codes;
    std::size_t g = 0;
    for (std::size_t at = 0; at < layout.inputs; ++g) {
        Ints sum[rows][CODE_VECTORS];
        for (int r = 0; r < rows; ++r)
            for (int j = 0; j < CODE_VECTORS; ++j) sum[r][j] = ints_set(a.offsets[g * rows + r]);
        const std::size_t end = layout.inputs - at < CHANNEL_SPAN ? layout.inputs : at + CHANNEL_SPAN;
        for (; at < end; at += 32, block += record) {
            for (std::size_t line = 0; line < record; line += 64)
                __builtin_prefetch(block + CODES_AHEAD + line);
            add_span<BYTE, rows, 32, false>(block, inputs, nullptr, layout.table, 0, sum);
            inputs += 8 * rows * D::STEP;
        }
        for (int r = 0; r < rows; ++r)
            for (int j = 0; j < CODE_VECTORS; ++j)
                total[r][j] = fma(to_float(sum[r][j]), V::set(a.scales[g * rows + r]), total[r][j]);
    }
    for (int j = 0; j < CODE_VECTORS; ++j) {
        const V scale = load_scale(block, layout.half, j);
        for (int r = 0; r < rows; ++r) total[r][j] = total[r][j] * scale;
    }
    store_tile<rows>(total, bias, out, stride, outputs);
}

template <int rows>
inline void code_tile(const CodeLayout& layout, const std::uint8_t* block, const CodeActivations& a,
                      const float* bias, float* out, std::size_t stride, std::size_t outputs) {
#define OCTAVO_TILE(kind, span, minimum) \
    return grouped_tile<kind, span, minimum, rows>(layout, block, a, bias, out, stride, outputs)
    switch (layout.kind) {
        case NIBBLE:
            if (layout.minimum) OCTAVO_TILE(NIBBLE, 32, true);
            OCTAVO_TILE(NIBBLE, 32, false);
        case NIBBLE_TABLE: OCTAVO_TILE(NIBBLE_TABLE, 32, false);
        case BYTE_TO_31:
            if (layout.minimum) OCTAVO_TILE(BYTE_TO_31, 32, true);
            OCTAVO_TILE(BYTE_TO_31, 32, false);
        case BYTE_TO_63: OCTAVO_TILE(BYTE_TO_63, 16, false);
        case BYTE:
            if (layout.group == 0) return channel_tile<rows>(layout, block, a, bias, out, stride, outputs);
            if (layout.minimum) OCTAVO_TILE(BYTE, 32, true);
            OCTAVO_TILE(BYTE, 32, false);
    }
#undef OCTAVO_TILE
}

template <int R>
inline void code_rows(const CodeLayout& layout, const std::uint8_t* block, const CodeActivations& a,
                      std::size_t rows, const float* bias, float* out, std::size_t stride,
                      std::size_t outputs) {
    if constexpr (R > 1)
        if (rows < R) return code_rows<R - 1>(layout, block, a, rows, bias, out, stride, outputs);
    code_tile<R>(layout, block, a, bias, out, stride, outputs);
}

// One block's `outputs` outputs of the `rows` rows (at most CODE_TILE) of one tile of activations.
// `out` is the first row's first output, `bias` the block's or null.
inline void linear_codes(const CodeLayout& layout, const std::uint8_t* block, const CodeActivations& a,
                         std::size_t rows, const float* bias, float* out, std::size_t stride,
                         std::size_t outputs) {
    code_rows<CODE_TILE>(layout, block, a, rows, bias, out, stride, outputs);
}

}  // namespace octavo::OCTAVO_ISA
