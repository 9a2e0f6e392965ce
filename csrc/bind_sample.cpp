// Sampling and scoring over numpy arrays.
#include "bind.hpp"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include "sampling.hpp"

namespace octavo {

namespace {

template <class T>
using List = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Table = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Rows may lie apart: the head computes more columns than the vocabulary has words.
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

constexpr std::size_t MAX_VOCABULARY = std::size_t{1} << 31;

void require_logits(const Logits& logits, std::size_t rows) {
    const std::size_t vocabulary = logits.shape(1);
    require(vocabulary > 0 && vocabulary < MAX_VOCABULARY,
            "logits have " + std::to_string(vocabulary) + " columns");
    require(logits.size() == 0 || vocabulary == 1 || logits.stride(1) == 1,
            "the logits of a row must lie together");
    require(logits.shape(0) == rows, "logits have " + std::to_string(logits.shape(0)) + " rows, but " +
                                         std::to_string(rows) + " are described");
}

// One list for each row: row r's is values[starts[r] ..< starts[r + 1]]. Absent: all are empty.
template <class... T>
using Ragged = std::optional<std::tuple<List<std::int64_t>, List<T>...>>;

template <class... T>
void require_starts(const char* name, const Ragged<T...>& lists, std::size_t rows) {
    if (!lists) return;
    const List<std::int64_t>& starts = std::get<0>(*lists);
    bool good = starts.shape(0) == rows + 1 && starts(0) == 0;
    for (std::size_t r = 0; good && r < rows; ++r) good = starts(r) <= starts(r + 1);
    const auto ends_at = [&](const auto&, const auto&... values) {
        return (... && (starts(rows) == static_cast<std::int64_t>(values.shape(0))));
    };
    good = good && std::apply(ends_at, *lists);
    require(good, std::string(name) + ": the starts do not delimit lists for " +
                      std::to_string(rows) + " rows");
}

// Row r's part of the list that is number `which` of `lists`.
template <std::size_t which, class... T>
auto part(const Ragged<T...>& lists, std::size_t row) {
    using Value = std::tuple_element_t<which - 1, std::tuple<T...>>;
    if (!lists) return Span<Value>{};
    const List<std::int64_t>& starts = std::get<0>(*lists);
    return Span<Value>{std::get<which>(*lists).data() + starts(row),
                       static_cast<std::size_t>(starts(row + 1) - starts(row))};
}

// What is told of each row, and room for its alternatives.
class Reports {
public:
    // `tops`: for each row how many alternatives are wanted; negative: no logprobs at all.
    Reports(const std::vector<std::int64_t>& tops, std::size_t vocabulary) : reports_(tops.size()) {
        std::size_t all = 0;
        for (std::size_t r = 0; r < tops.size(); ++r) {
            const std::uint64_t wanted = static_cast<std::uint64_t>(std::max<std::int64_t>(tops[r], 0));
            reports_[r].wanted = tops[r] >= 0;
            reports_[r].top = std::min<std::uint64_t>(wanted, vocabulary);
            all += reports_[r].top;
        }
        ids_.resize(all);
        logprobs_.resize(all);
        all = 0;
        for (Report& report : reports_) {
            report.top_ids = ids_.data() + all;
            report.top_logprobs = logprobs_.data() + all;
            all += report.top;
        }
    }

    Report& operator[](std::size_t row) { return reports_[row]; }

    // For each row (status, token, logprob, rank, [(token, logprob)]).
    nb::list told() const {
        nb::list rows;
        for (const Report& one : reports_) {
            const bool described = one.wanted && one.status == RowStatus::fine;
            nb::list top;
            for (std::size_t i = 0; described && i < one.top; ++i)
                top.append(nb::make_tuple(one.top_ids[i], one.top_logprobs[i]));
            rows.append(nb::make_tuple(static_cast<int>(one.status), one.token,
                                       described ? one.logprob : 0.0, described ? one.rank : 0, top));
        }
        return rows;
    }

private:
    std::vector<Report> reports_;
    std::vector<std::int64_t> ids_;
    std::vector<double> logprobs_;
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

nb::list sample(Logits logits, Table<std::uint64_t> keys, Table<double> numbers,
                Table<std::int64_t> limits, Pool& pool, Ragged<std::int64_t> prompt,
                Ragged<std::int64_t, float> output, Ragged<std::int64_t, float> bias,
                Ragged<std::int64_t> banned, Ragged<std::uint8_t> mask) {
    const std::size_t rows = keys.shape(0);
    require_logits(logits, rows);
    require(keys.shape(1) == 3, "keys must have 3 columns");
    require(numbers.shape(0) == rows && numbers.shape(1) == 6, "numbers must be (rows, 6)");
    require(limits.shape(0) == rows && limits.shape(1) == 3, "limits must be (rows, 3)");
    require_starts("prompt", prompt, rows);
    require_starts("output", output, rows);
    require_starts("bias", bias, rows);
    require_starts("banned", banned, rows);
    require_starts("mask", mask, rows);
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
                .prompt_ids = part<1>(prompt, r),
                .output_ids = part<1>(output, r),
                .bias_ids = part<1>(bias, r),
                .banned_ids = part<1>(banned, r),
                .output_counts = part<2>(output, r).data,
                .biases = part<2>(bias, r).data,
                .masked = limits(r, 2) != 0,
                .mask = part<1>(mask, r),
            };
            sample_row(row_of(logits, r), logits.shape(1), settings, reports[r]);
        });
    }
    return reports.told();
}

nb::list score(Logits logits, List<std::int64_t> targets, std::int64_t top, Pool& pool) {
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
    return reports.told();
}

}  // namespace

void bind_sample(nb::module_& module) {
    using nb::arg;
    module.def(
        "sample", &sample, arg("logits").noconvert(), arg("keys").noconvert(),
        arg("numbers").noconvert(), arg("limits").noconvert(), arg("pool"), nb::kw_only(),
        arg("prompt").noconvert() = nb::none(), arg("output").noconvert() = nb::none(),
        arg("bias").noconvert() = nb::none(), arg("banned").noconvert() = nb::none(),
        arg("mask").noconvert() = nb::none(),
        "One token for each row of logits (rows, vocabulary). By row: keys (seed, choice, position); "
        "numbers (temperature, top_p, min_p, repetition, presence and frequency penalty); limits "
        "(top_k, alternatives to report or -1, whether masked). The others are lists by row, as "
        "(starts (rows + 1), ids), `output` with counts, `bias` with values, `mask` of bytes. Returns "
        "for each row (status, token, logprob, rank, [(token, logprob)]); status 0: fine, 1: not "
        "finite, 2: nothing allowed. Raises ValueError for sizes that do not fit.");
    module.def("score", &score, arg("logits").noconvert(), arg("targets").noconvert(), arg("top"),
               arg("pool"),
               "Logprobs, ranks and `top` alternatives of known tokens: returns what `sample` does.");
}

}  // namespace octavo
