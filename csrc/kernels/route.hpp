// The experts that a token takes, and what each one's output weighs.
//
// Sums run over the experts in their order. Equal scores: the lower number goes first. A row that is
// not finite weighs everything NaN, so that it is found at the logits.
#pragma once

#include "../rows.hpp"
#include "act.hpp"
#include "softmax.hpp"

namespace octavo::OCTAVO_ISA {

// e^(x - best) of each, to `out` (padded to whole vectors); returns their sum.
inline float exponentials(const float* x, std::size_t n, float best, float* out) {
    for (std::size_t i = 0; i < n; i += V::N) {
        const V part = n - i < V::N ? V::load_first(x + i, n - i) : V::load(x + i);
        exp2_below_zero((part - V::set(best)) * V::set(LOG2_E)).store(out + i);
    }
    float sum = 0.0f;
    for (std::size_t i = 0; i < n; ++i) sum += out[i];
    return sum;
}

// The numbers of the `most` largest scores, in ascending order.
inline void largest(const float* scores, std::size_t count, std::size_t most, std::uint32_t* chosen) {
    // Best first, while they are looked for.
    for (std::size_t i = 0, kept = 0; i < count; ++i) {
        if (kept == most && !(scores[i] > scores[chosen[most - 1]])) continue;
        std::size_t at = kept < most ? kept++ : most - 1;
        for (; at > 0 && scores[i] > scores[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
        chosen[at] = static_cast<std::uint32_t>(i);
    }
    for (std::size_t i = 1; i < most; ++i) {
        const std::uint32_t number = chosen[i];
        std::size_t at = i;
        for (; at > 0 && chosen[at - 1] > number; --at) chosen[at] = chosen[at - 1];
        chosen[at] = number;
    }
}

// One row of `routing.logits()` scores, to `routing.taken()` experts and weights.
inline void route(const Routing& routing, const float* scores, std::uint32_t* chosen, float* weights) {
    float powers[MOST_EXPERTS + V::N];
    float best = scores[0];
    for (std::size_t i = 1; i < routing.count; ++i)
        if (scores[i] > best) best = scores[i];
    const float all = exponentials(scores, routing.count, best, powers);
    largest(scores, routing.count, routing.top_k, chosen);
    float sum = 0.0f;
    for (std::size_t i = 0; i < routing.top_k; ++i) sum += weights[i] = powers[chosen[i]] / all;
    for (std::size_t i = 0; i < routing.top_k; ++i)
        weights[i] = (routing.normalize ? weights[i] / sum : weights[i]) * routing.scale;
    if (!routing.shared) return;
    chosen[routing.top_k] = static_cast<std::uint32_t>(routing.count);
    float gate[V::N];
    logistic_of(V::set(1.0f), V::set(0.5f * scores[routing.count])).store(gate);
    weights[routing.top_k] = gate[0];
}

}  // namespace octavo::OCTAVO_ISA
