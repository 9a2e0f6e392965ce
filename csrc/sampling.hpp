// From one row of logits to a token, its logprob and its best alternatives.
//
// Owns: penalties, bias, mask and bans; filters without a sort of the vocabulary; the report.
// Does not know: Python, threads, other rows. The semantics are those of
// ops/reference_sampling.py, which is the oracle.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows.hpp"

namespace octavo {

template <class T>
struct Span {
    const T* data = nullptr;
    std::size_t size = 0;
};

// How one row is sampled. Ids outside the vocabulary are ignored; those of one list differ.
struct RowSettings {
    RaceKey key;
    double temperature;  // 0: greedy
    std::int64_t top_k;  // 0 or less: all
    double top_p;
    float min_p;
    float repetition, presence, frequency;
    Span<std::int64_t> prompt_ids, output_ids, bias_ids, banned_ids;
    const float* output_counts;
    const float* biases;
    bool masked;
    Span<std::uint8_t> mask;  // bit i % 8 of byte i / 8 allows token i; beyond the mask none is
};

enum class RowStatus : std::uint8_t { fine, not_finite, nothing_allowed };

// `top_ids` and `top_logprobs` have room for min(top, vocabulary) entries.
struct Report {
    bool wanted;
    std::size_t top;
    std::int64_t* top_ids;
    double* top_logprobs;
    std::int64_t token;
    double logprob;
    std::int64_t rank;
    RowStatus status;
};

// Sets the report's token and status, and where it is wanted the logprobs.
void sample_row(const float* logits, std::size_t size, const RowSettings& settings, Report& report);

// Reports on the known token `report.token`, which may lie outside the vocabulary.
void score_row(const float* logits, std::size_t size, Report& report);

}  // namespace octavo
