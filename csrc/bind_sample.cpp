// Sampling and scoring over numpy arrays.
#include "bind.hpp"

#include <algorithm>
#include <vector>

#include "sampling.hpp"

namespace octavo {

namespace {

template <class T>
using List = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Table = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Rows may lie apart: the head computes more columns than the vocabulary has words.
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

template <class T>
auto new_list(std::size_t size) {
    T* data = new T[size]();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner);
}

constexpr std::size_t MAX_VOCABULARY = std::size_t{1} << 31;

void require_logits(const Logits& logits, std::size_t rows) {
    const std::size_t vocabulary = logits.shape(1);
    require(vocabulary > 0 && vocabulary < MAX_VOCABULARY,
            "logits have " + std::to_string(vocabulary) + " columns");
    require(vocabulary == 1 || logits.stride(1) == 1, "the logits of a row must lie together");
    require(logits.shape(0) == rows, "logits have " + std::to_string(logits.shape(0)) + " rows, but " +
                                         std::to_string(rows) + " are described");
}

// Row r of a ragged list is values[starts[r] ..< starts[r + 1]].
void require_starts(const char* name, const List<std::int64_t>& starts, std::size_t rows,
                    std::size_t values) {
    bool good = starts.shape(0) == rows + 1 && starts(0) == 0 &&
                starts(rows) == static_cast<std::int64_t>(values);
    for (std::size_t r = 0; good && r < rows; ++r) good = starts(r) <= starts(r + 1);
    require(good, std::string(name) + ": the starts do not delimit " + std::to_string(rows) +
                      " rows of " + std::to_string(values) + " values");
}

template <class T>
Span<T> part(const List<std::int64_t>& starts, const List<T>& values, std::size_t row) {
    return {values.data() + starts(row), static_cast<std::size_t>(starts(row + 1) - starts(row))};
}

// What is told of each row; its alternatives are top_ids[top_starts[r] ..< top_starts[r + 1]].
class Reports {
public:
    // `tops`: for each row how many alternatives are wanted; negative: no logprobs at all.
    Reports(const std::vector<std::int64_t>& tops, std::size_t vocabulary)
        : reports_(tops.size()), starts_(new_list<std::int64_t>(tops.size() + 1)) {
        for (std::size_t r = 0; r < tops.size(); ++r) {
            const std::uint64_t wanted = static_cast<std::uint64_t>(std::max<std::int64_t>(tops[r], 0));
            const std::size_t top = std::min<std::uint64_t>(wanted, vocabulary);
            reports_[r].wanted = tops[r] >= 0;
            reports_[r].top = top;
            starts_.data()[r + 1] = starts_.data()[r] + static_cast<std::int64_t>(top);
        }
        const std::size_t all = static_cast<std::size_t>(starts_.data()[tops.size()]);
        ids_ = new_list<std::int64_t>(all);
        logprobs_ = new_list<double>(all);
        for (std::size_t r = 0; r < tops.size(); ++r) {
            reports_[r].top_ids = ids_.data() + starts_.data()[r];
            reports_[r].top_logprobs = logprobs_.data() + starts_.data()[r];
        }
    }

    Report& operator[](std::size_t row) { return reports_[row]; }

    nb::tuple arrays() {
        const std::size_t rows = reports_.size();
        auto tokens = new_list<std::int64_t>(rows);
        auto ranks = new_list<std::int64_t>(rows);
        auto logprobs = new_list<double>(rows);
        auto statuses = new_list<std::uint8_t>(rows);
        for (std::size_t r = 0; r < rows; ++r) {
            tokens.data()[r] = reports_[r].token;
            logprobs.data()[r] = reports_[r].logprob;
            ranks.data()[r] = reports_[r].rank;
            statuses.data()[r] = static_cast<std::uint8_t>(reports_[r].status);
        }
        return nb::make_tuple(statuses, tokens, logprobs, ranks, starts_, ids_, logprobs_);
    }

private:
    std::vector<Report> reports_;
    nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> starts_, ids_;
    nb::ndarray<nb::numpy, double, nb::ndim<1>> logprobs_;
};

// Logits below which rows are not worth another thread.
constexpr std::size_t WORTH_SHARING = 1 << 16;

template <class Work>
void each_row(Pool& pool, const Logits& logits, Work work) {
    const std::size_t rows = logits.shape(0);
    if (rows * logits.shape(1) < WORTH_SHARING) {
        for (std::size_t r = 0; r < rows; ++r) work(r);
    } else {
        pool.run(rows, work);
    }
}

const float* row_of(const Logits& logits, std::size_t row) {
    return logits.data() + static_cast<std::int64_t>(row) * logits.stride(0);
}

nb::tuple sample(Logits logits, Table<std::uint64_t> keys, Table<double> numbers,
                 Table<std::int64_t> limits, List<std::int64_t> prompt_starts,
                 List<std::int64_t> prompt_ids, List<std::int64_t> output_starts,
                 List<std::int64_t> output_ids, List<float> output_counts,
                 List<std::int64_t> bias_starts, List<std::int64_t> bias_ids, List<float> biases,
                 List<std::int64_t> banned_starts, List<std::int64_t> banned_ids,
                 List<std::int64_t> mask_starts, List<std::uint8_t> masks, Pool& pool) {
    const std::size_t rows = keys.shape(0);
    require_logits(logits, rows);
    require(keys.shape(1) == 3, "keys must have 3 columns");
    require(numbers.shape(0) == rows && numbers.shape(1) == 6, "numbers must be (rows, 6)");
    require(limits.shape(0) == rows && limits.shape(1) == 3, "limits must be (rows, 3)");
    require_starts("prompt ids", prompt_starts, rows, prompt_ids.shape(0));
    require_starts("output ids", output_starts, rows, output_ids.shape(0));
    require_starts("output counts", output_starts, rows, output_counts.shape(0));
    require_starts("bias ids", bias_starts, rows, bias_ids.shape(0));
    require_starts("biases", bias_starts, rows, biases.shape(0));
    require_starts("banned ids", banned_starts, rows, banned_ids.shape(0));
    require_starts("masks", mask_starts, rows, masks.shape(0));
    std::vector<std::int64_t> tops(rows);
    for (std::size_t r = 0; r < rows; ++r) tops[r] = limits(r, 1);
    Reports reports(tops, logits.shape(1));
    {
        nb::gil_scoped_release released;
        each_row(pool, logits, [&](std::size_t r) {
            const RowSettings settings{
                .key = {keys(r, 0), keys(r, 1), keys(r, 2)},
                .temperature = numbers(r, 0),
                .top_k = limits(r, 0),
                .top_p = numbers(r, 1),
                .min_p = static_cast<float>(numbers(r, 2)),
                .repetition = static_cast<float>(numbers(r, 3)),
                .presence = static_cast<float>(numbers(r, 4)),
                .frequency = static_cast<float>(numbers(r, 5)),
                .prompt_ids = part(prompt_starts, prompt_ids, r),
                .output_ids = part(output_starts, output_ids, r),
                .bias_ids = part(bias_starts, bias_ids, r),
                .banned_ids = part(banned_starts, banned_ids, r),
                .output_counts = output_counts.data() + output_starts(r),
                .biases = biases.data() + bias_starts(r),
                .masked = limits(r, 2) != 0,
                .mask = part(mask_starts, masks, r),
            };
            sample_row(row_of(logits, r), logits.shape(1), settings, reports[r]);
        });
    }
    return reports.arrays();
}

nb::tuple score(Logits logits, List<std::int64_t> targets, std::int64_t top, Pool& pool) {
    const std::size_t rows = targets.shape(0);
    require_logits(logits, rows);
    require(top >= 0, "top is " + std::to_string(top));
    Reports reports(std::vector<std::int64_t>(rows, top), logits.shape(1));
    {
        nb::gil_scoped_release released;
        each_row(pool, logits, [&](std::size_t r) {
            reports[r].token = targets(r);
            score_row(row_of(logits, r), logits.shape(1), reports[r]);
        });
    }
    return reports.arrays();
}

}  // namespace

void bind_sample(nb::module_& module) {
    using nb::arg;
    module.def(
        "sample", &sample, arg("logits").noconvert(), arg("keys").noconvert(),
        arg("numbers").noconvert(), arg("limits").noconvert(), arg("prompt_starts").noconvert(),
        arg("prompt_ids").noconvert(), arg("output_starts").noconvert(),
        arg("output_ids").noconvert(), arg("output_counts").noconvert(),
        arg("bias_starts").noconvert(), arg("bias_ids").noconvert(), arg("biases").noconvert(),
        arg("banned_starts").noconvert(), arg("banned_ids").noconvert(),
        arg("mask_starts").noconvert(), arg("masks").noconvert(), arg("pool"),
        "One token for each row of logits (rows, vocabulary). By row: keys (seed, choice, position); "
        "numbers (temperature, top_p, min_p, repetition, presence and frequency penalty); limits "
        "(top_k, alternatives to report or -1, whether masked); ragged lists by starts (rows + 1). "
        "Returns (statuses, tokens, logprobs, ranks, top starts, top ids, top logprobs); status 0: "
        "fine, 1: not finite, 2: nothing allowed. Raises ValueError for sizes that do not fit.");
    module.def("score", &score, arg("logits").noconvert(), arg("targets").noconvert(), arg("top"),
               arg("pool"),
               "Logprobs, ranks and `top` alternatives of known tokens: returns what `sample` does.");
}

}  // namespace octavo
