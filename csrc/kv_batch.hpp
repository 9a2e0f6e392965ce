// What attention needs to know of a step: rows of consecutive tokens and their block tables.
//
// Owns: flat arrays of a batch, and the checks that make them safe to read.
// Does not know: Python, the cache's memory, models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

class KvBatch {
public:
    using Ints = std::vector<std::int32_t>;

    // `positions` has an entry for each token, `row_starts` one for each row and the end;
    // `tables[group][row]` are block ids, `write_from` has an entry for each row. Throws
    // std::invalid_argument where they do not fit together or a table does not cover its row.
    KvBatch(std::size_t block_tokens, Ints positions, Ints row_starts,
            const std::vector<std::vector<Ints>>& tables, Ints write_from);

    std::size_t block_tokens() const { return block_tokens_; }
    std::size_t tokens() const { return positions_.size(); }
    std::size_t rows() const { return row_starts_.size() - 1; }
    std::size_t begin(std::size_t row) const { return static_cast<std::size_t>(row_starts_[row]); }
    std::size_t end(std::size_t row) const { return begin(row + 1); }
    std::size_t row_of(std::size_t token) const { return row_of_[token]; }
    std::size_t position(std::size_t token) const { return static_cast<std::size_t>(positions_[token]); }
    std::size_t last_position() const { return last_position_; }
    bool written(std::size_t token) const { return positions_[token] >= write_from_[row_of_[token]]; }
    const std::int32_t* table(std::size_t group, std::size_t row) const {
        return tables_[group].ids.data() + tables_[group].starts[row];
    }

    // Throws std::invalid_argument where a pool of `blocks` lacks a block of the group's tables.
    void check_blocks(std::size_t group, std::size_t blocks) const;

private:
    struct Tables {
        Ints ids;
        std::vector<std::size_t> starts;
        std::int32_t lowest = 0, highest = -1;
    };

    void check_rows() const;
    void add_table(Tables& flat, const Ints& table, std::size_t row);

    std::size_t block_tokens_;
    Ints positions_;
    Ints row_starts_;
    Ints write_from_;
    std::vector<Tables> tables_;
    std::vector<std::uint32_t> row_of_;
    std::size_t last_position_ = 0;
};

}  // namespace octavo
