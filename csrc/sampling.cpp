#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels.hpp"

namespace octavo {

namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr double LOGPROB_FLOOR = -9999.0;  // in place of -inf, which JSON cannot say
constexpr double COLDEST = 1e-30;          // as in the reference: below it greedy to the last bit

// An array that is kept and grows, its values not set.
template <class T>
class Room {
public:
    T* of(std::size_t size) {
        if (size > size_) {
            data_.reset(new T[size]);
            size_ = size;
        }
        return data_.get();
    }

private:
    std::unique_ptr<T[]> data_;
    std::size_t size_ = 0;
};

// Scratch of one thread, so that a step allocates nothing once the vocabulary was seen. No call
// leaves anything in it for the next.
struct Scratch {
    Room<float> adjusted, raw_peaks, peaks, values, weights;
    Room<std::uint32_t> ids, found, keys, rest;
};

Scratch& scratch() {
    static thread_local Scratch one;
    return one;
}

std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// A key that orders as the floats do; both zeros have one key.
std::uint32_t key_of(float x) {
    const std::uint32_t bits = bits_of(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

float value_of(std::uint32_t key) {
    const std::uint32_t bits = key >> 31 ? key & 0x7fffffffu : ~key;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// The rows' best values by lane and chunk (see the kernel `peaks`).
struct Peaks {
    const float* data;
    std::size_t count;
    bool finite;
    float best;
};

Peaks find_peaks(const float* x, std::size_t n, Room<float>& room) {
    const std::size_t lanes = static_cast<std::size_t>(kernels().vector);
    const std::size_t chunk = PEAK_VECTORS * lanes;
    const std::size_t count = (n + chunk - 1) / chunk * lanes;
    float* data = room.of(count);
    const bool finite = kernels().peaks(x, n, data);
    return {data, count, finite, *std::max_element(data, data + count)};
}

// The lowest index of the best value.
std::size_t first_best(const float* x, std::size_t n, const Peaks& peaks) {
    const std::size_t lanes = static_cast<std::size_t>(kernels().vector);
    const std::size_t peak = static_cast<std::size_t>(
        std::find(peaks.data, peaks.data + peaks.count, peaks.best) - peaks.data);
    const float* chunk = x + peak / lanes * lanes * PEAK_VECTORS;
    return static_cast<std::size_t>(std::find(chunk, x + n, peaks.best) - x);
}

// Which entries to keep: all with a larger key, and the first `ties` of those with this key.
struct Cut {
    std::uint32_t key;
    std::size_t ties;

    bool keeps(std::uint32_t other) { return other > key || (other == key && ties > 0 && ties-- > 0); }
};

// The smallest set of largest keys (ties: lowest index) whose masses reach `goal`; all, where they
// do not. mass(i) must be the same for equal keys. A radix selection: by bytes of the key, from the
// upper one, only the bucket in which the goal is met is looked into. No sort, and the same sums in
// the same order whatever else the machine does.
template <class Mass>
Cut cut_at(const std::uint32_t* keys, std::size_t n, double goal, std::uint32_t* rest, Mass mass) {
    for (std::size_t i = 0; i < n; ++i) rest[i] = static_cast<std::uint32_t>(i);
    double reached = 0.0;
    std::uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double sums[256] = {};
        std::uint32_t counts[256] = {};
        for (std::size_t i = 0; i < n; ++i) {
            const std::uint32_t digit = keys[rest[i]] >> shift & 0xffu;
            sums[digit] += mass(rest[i]);
            ++counts[digit];
        }
        std::uint32_t chosen = 0;
        double before = reached;
        for (std::uint32_t digit = 256; digit-- > 0;) {
            if (counts[digit] == 0) continue;
            chosen = digit;
            before = reached;
            if (reached + sums[digit] >= goal) break;
            reached += sums[digit];
        }
        reached = before;
        prefix = prefix << 8 | chosen;
        std::size_t kept = 0;
        for (std::size_t i = 0; i < n; ++i)
            if ((keys[rest[i]] >> shift & 0xffu) == chosen) rest[kept++] = rest[i];
        n = kept;
    }
    std::size_t ties = 0;
    while (ties < n && reached < goal) {
        reached += mass(rest[ties]);
        ++ties;
    }
    return {prefix, ties};
}

// The ids of the k largest values (ties: lowest id), ascending, into `ids`; 0 < k <= n.
//
// As many peaks as are wanted bound the smallest wanted value from below, each by another value;
// only what reaches that bound is looked at again.
void largest(const float* x, std::size_t n, const Peaks& peaks, std::size_t k, std::uint32_t* ids) {
    Scratch& own = scratch();
    std::uint32_t* rest = own.rest.of(std::max(n, peaks.count));
    std::uint32_t* keys = own.keys.of(std::max(n, peaks.count));
    const auto one = [](std::uint32_t) { return 1.0; };
    const double goal = static_cast<double>(k);
    float bound = -INF;
    if (k <= peaks.count) {
        std::transform(peaks.data, peaks.data + peaks.count, keys, key_of);
        bound = value_of(cut_at(keys, peaks.count, goal, rest, one).key);
    }
    std::uint32_t* found = own.found.of(n);
    const std::size_t count = kernels().collect(x, n, bound, found);
    for (std::size_t i = 0; i < count; ++i) keys[i] = key_of(x[found[i]]);
    Cut cut = cut_at(keys, count, goal, rest, one);
    for (std::size_t i = 0; i < count; ++i)
        if (cut.keeps(keys[i])) *ids++ = found[i];
}

// The tokens that are still in the race: ids[0 ..< size] ascending, or all where `ids` is null.
struct Field {
    std::uint32_t* ids;
    float* weights;
    std::size_t size;

    // Keeps the entries at `kept` (ascending); `room` is for the ids where there were none.
    void keep(const std::uint32_t* kept, std::size_t count, std::uint32_t* room) {
        for (std::size_t i = 0; i < count; ++i) {
            room[i] = ids != nullptr ? ids[kept[i]] : kept[i];
            weights[i] = weights[kept[i]];
        }
        ids = room;
        size = count;
    }
};

// Keeps the smallest set of most likely tokens whose share reaches top_p.
//
// A token lighter than (1 - top_p) / size of the sum cannot be needed: all such together weigh less
// than what may be left out. The rest is usually short.
void keep_nucleus(Field& field, double sum, double top_p) {
    Scratch& own = scratch();
    const double bound = 0.999 * (1.0 - top_p) * sum / static_cast<double>(field.size);
    std::uint32_t* found = own.found.of(field.size);
    std::uint32_t* keys = own.keys.of(field.size);
    const std::size_t count =
        kernels().collect(field.weights, field.size, static_cast<float>(bound), found);
    for (std::size_t i = 0; i < count; ++i) keys[i] = bits_of(field.weights[found[i]]);
    const auto mass = [&](std::uint32_t i) { return static_cast<double>(field.weights[found[i]]); };
    Cut cut = cut_at(keys, count, top_p * sum, own.rest.of(field.size), mass);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i)
        if (cut.keeps(keys[i])) found[kept++] = found[i];
    field.keep(found, kept, own.ids.of(field.size));
}

std::size_t draw(const float* x, std::size_t n, const Peaks& peaks, const RowSettings& settings) {
    Scratch& own = scratch();
    Field field{nullptr, nullptr, n};
    const float* values = x;
    if (settings.top_k > 0 && static_cast<std::uint64_t>(settings.top_k) < n) {
        field.size = static_cast<std::size_t>(settings.top_k);
        field.ids = own.ids.of(n);
        largest(x, n, peaks, field.size, field.ids);
        float* gathered = own.values.of(field.size);
        for (std::size_t i = 0; i < field.size; ++i) gathered[i] = x[field.ids[i]];
        values = gathered;
    }
    field.weights = own.weights.of(field.size);
    const float temperature = static_cast<float>(std::max(settings.temperature, COLDEST));
    const double sum = kernels().weights(values, field.size, peaks.best, temperature, field.weights);
    if (settings.top_p < 1.0) keep_nucleus(field, sum, settings.top_p);
    if (settings.min_p > 0.0f) {
        std::uint32_t* found = own.found.of(field.size);
        const std::size_t kept = kernels().collect(field.weights, field.size, settings.min_p, found);
        field.keep(found, kept, own.ids.of(field.size));
    }
    const std::size_t best = first_best(x, n, peaks);
    if (field.size == 0) return best;  // a min_p above 1
    const std::size_t first = field.ids == nullptr ? best : 0;
    const std::size_t winner =
        kernels().race(settings.key, field.ids, field.weights, field.size, first);
    return field.ids != nullptr ? field.ids[winner] : winner;
}

bool adjusts(const RowSettings& s) {
    return s.repetition != 1.0f || s.presence != 0.0f || s.frequency != 0.0f || s.bias_ids.size > 0 ||
           s.masked || s.banned_ids.size > 0;
}

template <class F>
void each_known(Span<std::int64_t> ids, std::size_t n, F f) {
    for (std::size_t i = 0; i < ids.size; ++i)
        if (ids.data[i] >= 0 && static_cast<std::uint64_t>(ids.data[i]) < n)
            f(static_cast<std::size_t>(ids.data[i]), i);
}

// The logits after penalties, bias, mask and bans, in that order, each in float as written.
const float* adjusted(const float* logits, std::size_t n, const RowSettings& s) {
    float* out = scratch().adjusted.of(n);
    std::copy(logits, logits + n, out);
    if (s.repetition != 1.0f) {
        // From the logit itself: a token of both lists is penalised once.
        const auto penalise = [&](std::size_t t, std::size_t) {
            out[t] = logits[t] > 0.0f ? logits[t] / s.repetition : logits[t] * s.repetition;
        };
        each_known(s.prompt_ids, n, penalise);
        each_known(s.output_ids, n, penalise);
    }
    each_known(s.output_ids, n, [&](std::size_t t, std::size_t i) {
        out[t] -= s.output_counts[i] * s.frequency + s.presence;
    });
    each_known(s.bias_ids, n, [&](std::size_t t, std::size_t i) { out[t] += s.biases[i]; });
    if (s.masked) {
        for (std::size_t t = 0; t < n; ++t) {
            const bool allowed = t / 8 < s.mask.size && (s.mask.data[t / 8] >> (t % 8) & 1u);
            out[t] = allowed ? out[t] : -INF;
        }
    }
    each_known(s.banned_ids, n, [&](std::size_t t, std::size_t) { out[t] = -INF; });
    return out;
}

double floored(double logprob) { return std::max(logprob, LOGPROB_FLOOR); }

// Raw logprob and rank of the report's token, and the best alternatives.
void describe(const float* logits, std::size_t n, const Peaks& raw, Report& report) {
    const double total =
        static_cast<double>(raw.best) + kernels().log_sum(logits, n, raw.best);
    const auto logprob = [&](std::size_t t) {
        return floored(static_cast<double>(logits[t]) - total);
    };
    const std::size_t top = std::min(report.top, n);
    if (top > 0) {
        std::uint32_t* ids = scratch().ids.of(n);
        largest(logits, n, raw, top, ids);
        std::stable_sort(ids, ids + top, [&](std::uint32_t a, std::uint32_t b) {
            return logits[a] > logits[b];
        });
        for (std::size_t i = 0; i < top; ++i) {
            report.top_ids[i] = ids[i];
            report.top_logprobs[i] = logprob(ids[i]);
        }
    }
    if (report.token < 0 || static_cast<std::uint64_t>(report.token) >= n) {
        report.logprob = LOGPROB_FLOOR;
        report.rank = static_cast<std::int64_t>(n) + 1;
        return;
    }
    const std::size_t token = static_cast<std::size_t>(report.token);
    report.logprob = logprob(token);
    report.rank = 1 + static_cast<std::int64_t>(kernels().count_above(logits, n, logits[token]));
}

bool usable(const Peaks& peaks) { return peaks.finite && peaks.best > -INF; }

}  // namespace

void sample_row(const float* logits, std::size_t n, const RowSettings& settings, Report& report) {
    report.token = -1;
    const Peaks raw = find_peaks(logits, n, scratch().raw_peaks);
    if (!usable(raw)) {
        report.status = RowStatus::not_finite;
        return;
    }
    const float* x = logits;
    Peaks peaks = raw;
    if (adjusts(settings)) {
        x = adjusted(logits, n, settings);
        peaks = find_peaks(x, n, scratch().peaks);
        if (!usable(peaks)) {
            // A penalty can overflow.
            report.status = peaks.finite ? RowStatus::nothing_allowed : RowStatus::not_finite;
            return;
        }
    }
    const bool greedy = settings.temperature == 0.0 || settings.top_k == 1 || settings.top_p == 0.0;
    report.token = static_cast<std::int64_t>(greedy ? first_best(x, n, peaks)
                                                    : draw(x, n, peaks, settings));
    report.status = RowStatus::fine;
    if (report.wanted) describe(logits, n, raw, report);
}

void score_row(const float* logits, std::size_t n, Report& report) {
    const Peaks raw = find_peaks(logits, n, scratch().raw_peaks);
    report.status = usable(raw) ? RowStatus::fine : RowStatus::not_finite;
    if (report.status == RowStatus::fine) describe(logits, n, raw, report);
}

}  // namespace octavo
