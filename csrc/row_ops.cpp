#include "row_ops.hpp"

#include <algorithm>
#include <cstring>

#include "kernels.hpp"

namespace octavo {

namespace {

// Values from which on a piece is worth another thread, by what a value costs: some 10 microseconds.
constexpr std::size_t CHEAP = 1 << 15;
constexpr std::size_t COSTLY = 1 << 13;

// Calls work(begin, end) for spans of `count` items of `width` values, on as many threads as pay.
template <class Work>
void share(Pool& pool, std::size_t count, std::size_t width, std::size_t worth, Work work) {
    const std::size_t pieces = std::clamp<std::size_t>(count * width / worth, 1, 1024);
    const std::size_t span = (count + pieces - 1) / pieces;
    pool.run(pieces, [&](std::size_t i) {
        const std::size_t begin = std::min(count, i * span);
        work(begin, std::min(count, begin + span));
    });
}

}  // namespace

void norm_rows(const Norm& spec, const float* x, const float* residual, float* total, float* out,
               std::size_t rows, Pool& pool) {
    share(pool, rows, spec.width, CHEAP, [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r) {
            const std::size_t at = r * spec.width;
            kernels().norm(spec, x + at, residual ? residual + at : nullptr, total ? total + at : nullptr,
                           out + at);
        }
    });
}

void act_rows(Activation kind, bool gated, const float* x, float* out, std::size_t rows, std::size_t width,
              Pool& pool) {
    const std::size_t inputs = gated ? 2 * width : width;
    share(pool, rows, width, COSTLY, [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r) {
            const float* row = x + r * inputs;
            kernels().act(kind, row, gated ? row + width : nullptr, out + r * width, width);
        }
    });
}

void add_values(const float* x, const float* y, float factor, float* out, std::size_t count, Pool& pool) {
    share(pool, count, 1, CHEAP, [&](std::size_t begin, std::size_t end) {
        kernels().add_scaled(x + begin, y + begin, factor, out + begin, end - begin);
    });
}

void scale_values(const float* x, float factor, float* out, std::size_t count, Pool& pool) {
    share(pool, count, 1, CHEAP, [&](std::size_t begin, std::size_t end) {
        kernels().scale(x + begin, factor, out + begin, end - begin);
    });
}

void bound_values(bool smooth, const float* x, float limit, float* out, std::size_t count, Pool& pool) {
    share(pool, count, 1, smooth ? COSTLY : CHEAP, [&](std::size_t begin, std::size_t end) {
        kernels().bound(smooth, x + begin, limit, out + begin, end - begin);
    });
}

void gather_rows(const float* x, const std::uint32_t* numbers, std::size_t count, std::size_t width, float* out,
                 Pool& pool) {
    share(pool, count, width, CHEAP, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i)
            std::memcpy(out + i * width, x + numbers[i] * width, width * sizeof(float));
    });
}

void add_to_rows(const float* y, const std::uint32_t* numbers, const float* factors, std::size_t count,
                 std::size_t width, float* out, Pool& pool) {
    share(pool, count, width, CHEAP, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            float* const row = out + numbers[i] * width;
            kernels().add_scaled(row, y + i * width, factors[i], row, width);
        }
    });
}

}  // namespace octavo
