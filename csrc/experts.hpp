// Routed experts: each row goes through a few of many small MLPs, and takes their weighted sum.
//
// Owns: the order of the work: rows are grouped by expert, experts follow one another by number.
// Does not know: how a row is routed (kernels/route.hpp) or multiplied (stack), Python. The weights
// are the caller's, who keeps them.
//
// A row's sum is in the order of its experts' numbers, and its products depend on the row alone: so
// it does not matter which other rows have chosen the same experts. An expert's rows are gathered
// and done with before the next one's, so that memory is needed for each row once, not for each of
// the experts that it takes.
#pragma once

#include <cstddef>
#include <vector>

#include "pool.hpp"
#include "rows.hpp"
#include "stack.hpp"

namespace octavo {

class Experts {
public:
    // Throws std::invalid_argument for numbers that are not possible.
    Experts(const Routing& routing, Activation kind, bool gated);

    // The next expert, by number; the shared one comes last. `up` stacks gate and up if gated.
    // Throws std::invalid_argument where shapes do not fit.
    void add(Stack up, Stack down);

    const Routing& routing() const { return routing_; }
    std::size_t width() const { return width_; }
    // Floats that `run` needs for each row, besides its arguments.
    std::size_t scratch_width() const { return width_ + wide_ + narrow_; }

    // Throws std::invalid_argument unless all experts are there, and take rows of such widths.
    void check(std::size_t width, std::size_t logits) const;

    // x (rows, width), logits (rows, routing().logits()), out (rows, width), which is not x.
    void run(const float* x, const float* logits, std::size_t rows, float* out, float* scratch, Pool& pool) const;

private:
    struct Expert {
        Stack up, down;
    };
    struct Groups;

    void group(const float* logits, std::size_t rows, Groups& groups, Pool& pool) const;

    Routing routing_;
    Activation kind_;
    bool gated_;
    std::vector<Expert> experts_;
    std::size_t width_ = 0, wide_ = 0, narrow_ = 0;
};

}  // namespace octavo
