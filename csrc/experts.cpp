#include "experts.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "checks.hpp"
#include "kernels.hpp"
#include "row_ops.hpp"

namespace octavo {

// Which rows each expert has, kept from call to call: it grows to the largest batch.
struct Experts::Groups {
    std::vector<std::uint32_t> chosen, rows;  // by row; by expert
    std::vector<float> weights, factors;      // of those
    std::vector<std::size_t> starts, next;    // where an expert's rows begin
};

Experts::Experts(const Routing& routing, Activation kind, bool gated)
    : routing_(routing), kind_(kind), gated_(gated) {
    require(routing.top_k > 0 && routing.top_k <= routing.count && routing.count <= MOST_EXPERTS,
            text(routing.top_k) + " of " + text(routing.count) + " experts; there can be " + text(MOST_EXPERTS));
}

void Experts::add(Stack up, Stack down) {
    require(experts_.size() < routing_.logits(), "more than " + text(routing_.logits()) + " experts");
    const std::size_t width = up.inputs(), wide = up.outputs(), narrow = down.inputs();
    require(width > 0 && narrow > 0 && wide == (gated_ ? 2 : 1) * narrow && down.outputs() == width,
            "an expert of " + text(width) + " inputs, " + text(wide) + " outputs, then " + text(narrow) +
                " inputs, " + text(down.outputs()) + " outputs");
    require(width_ == 0 || width == width_, "experts of " + text(width) + " and " + text(width_) + " inputs");
    width_ = width;
    wide_ = std::max(wide_, wide);
    narrow_ = std::max(narrow_, narrow);
    experts_.push_back({std::move(up), std::move(down)});
}

void Experts::check(std::size_t width, std::size_t logits) const {
    require(experts_.size() == routing_.logits(), [&] {
        return text(experts_.size()) + " experts of " + text(routing_.logits());
    });
    require(width == width_ && logits == routing_.logits(), [&] {
        return "rows of " + text(width) + " values and " + text(logits) + " scores for " +
               text(routing_.logits()) + " experts of " + text(width_) + " inputs";
    });
}

void Experts::group(const float* logits, std::size_t rows, Groups& groups, Pool& pool) const {
    const std::size_t taken = routing_.taken(), count = experts_.size();
    for (auto* each : {&groups.chosen, &groups.rows}) each->resize(std::max(each->size(), rows * taken));
    for (auto* each : {&groups.weights, &groups.factors}) each->resize(std::max(each->size(), rows * taken));
    const auto one = [&](std::size_t r) {
        kernels().route(routing_, logits + r * count, groups.chosen.data() + r * taken,
                        groups.weights.data() + r * taken);
    };
    // Waking the others costs more than a few rows do.
    if (rows * count < 4096)
        for (std::size_t r = 0; r < rows; ++r) one(r);
    else
        pool.run((rows + 15) / 16, [&](std::size_t piece) {
            for (std::size_t r = 16 * piece; r < std::min(rows, 16 * piece + 16); ++r) one(r);
        });
    groups.starts.assign(count + 1, 0);
    for (std::size_t i = 0; i < rows * taken; ++i) ++groups.starts[groups.chosen[i] + 1];
    for (std::size_t e = 0; e < count; ++e) groups.starts[e + 1] += groups.starts[e];
    groups.next.assign(groups.starts.begin(), groups.starts.end());
    for (std::size_t i = 0; i < rows * taken; ++i) {
        const std::size_t at = groups.next[groups.chosen[i]]++;
        groups.rows[at] = static_cast<std::uint32_t>(i / taken);
        groups.factors[at] = groups.weights[i];
    }
}

void Experts::run(const float* x, const float* logits, std::size_t rows, float* out, float* scratch,
                  Pool& pool) const {
    static thread_local Groups kept;
    Groups& groups = kept;  // the caller's, also where its pieces run on other threads
    group(logits, rows, groups, pool);
    std::memset(out, 0, rows * width_ * sizeof(float));
    float* const tile = scratch;
    float* const wide = tile + rows * width_;
    float* const narrow = wide + rows * wide_;
    for (std::size_t e = 0; e < experts_.size(); ++e) {
        const Expert& expert = experts_[e];
        const std::size_t first = groups.starts[e], count = groups.starts[e + 1] - first;
        if (count == 0) continue;
        const std::uint32_t* const numbers = groups.rows.data() + first;
        const float* inputs = x;
        if (count < rows) {
            gather_rows(x, numbers, count, width_, tile, pool);
            inputs = tile;
        }
        expert.up.multiply(inputs, count, wide, pool);
        act_rows(kind_, gated_, wide, narrow, count, expert.down.inputs(), pool);
        expert.down.multiply(narrow, count, tile, pool);
        add_to_rows(tile, numbers, groups.factors.data() + first, count, width_, out, pool);
    }
}

}  // namespace octavo
