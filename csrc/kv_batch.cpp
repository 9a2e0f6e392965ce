#include "kv_batch.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "checks.hpp"

namespace octavo {

KvBatch::KvBatch(std::size_t block_tokens, Ints positions, Ints row_starts,
                 const std::vector<std::vector<Ints>>& tables, Ints write_from)
    : block_tokens_(block_tokens),
      positions_(std::move(positions)),
      row_starts_(std::move(row_starts)),
      write_from_(std::move(write_from)) {
    check_rows();
    row_of_.resize(tokens());
    for (std::size_t r = 0; r < rows(); ++r)
        std::fill(row_of_.begin() + row_starts_[r], row_of_.begin() + row_starts_[r + 1],
                  static_cast<std::uint32_t>(r));
    for (const auto& group : tables) {
        require(group.size() == rows(), "a batch must have one block table for each row and KV group");
        Tables flat;
        for (std::size_t r = 0; r < rows(); ++r) add_table(flat, group[r], r);
        tables_.push_back(std::move(flat));
    }
    for (const std::int32_t position : positions_)
        last_position_ = std::max(last_position_, static_cast<std::size_t>(position));
}

void KvBatch::check_rows() const {
    require(block_tokens_ > 0, "a batch with blocks of no tokens");
    require(!row_starts_.empty() && row_starts_.front() == 0 &&
                static_cast<std::size_t>(row_starts_.back()) == tokens(),
            "row_starts must run from 0 to the number of tokens");
    require(write_from_.size() == rows(), "write_from must have one entry for each row");
    // All of the borders before any of them is used as an index.
    for (std::size_t r = 0; r < rows(); ++r)
        require(row_starts_[r] <= row_starts_[r + 1], "row_starts must not fall");
    for (std::size_t r = 0; r < rows(); ++r)
        for (std::size_t t = begin(r); t < end(r); ++t)
            require(positions_[t] >= 0 && (t == begin(r) || positions_[t] == positions_[t - 1] + 1),
                    "a row's positions must be consecutive, from 0 or later");
}

void KvBatch::add_table(Tables& flat, const Ints& table, std::size_t row) {
    if (begin(row) < end(row)) {
        const std::size_t last = position(end(row) - 1), covered = table.size() * block_tokens_;
        if (last >= covered)
            throw std::invalid_argument("row " + std::to_string(row) + " reaches position " +
                                        std::to_string(last) + ", but its block table covers " +
                                        std::to_string(covered) + " positions");
    }
    flat.starts.push_back(flat.ids.size());
    for (const std::int32_t id : table) {
        flat.lowest = std::min(flat.lowest, id);
        flat.highest = std::max(flat.highest, id);
    }
    flat.ids.insert(flat.ids.end(), table.begin(), table.end());
}

void KvBatch::check_blocks(std::size_t group, std::size_t blocks) const {
    if (group >= tables_.size())
        throw std::invalid_argument("KV group " + std::to_string(group) + " of a batch with " +
                                    std::to_string(tables_.size()));
    const Tables& flat = tables_[group];
    if (flat.lowest < 0 || flat.highest >= static_cast<std::int64_t>(blocks))
        throw std::invalid_argument("block " + std::to_string(flat.lowest < 0 ? flat.lowest : flat.highest) +
                                    " is outside the pool of " + std::to_string(blocks) + " blocks");
}

}  // namespace octavo
