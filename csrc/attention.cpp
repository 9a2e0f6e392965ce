#include "attention.hpp"

#include <algorithm>
#include <vector>

#include "kernels.hpp"

namespace octavo {

namespace {

// Values of a piece's queries that stay in the nearest caches beside a step's keys.
constexpr std::size_t PIECE_VALUES = 3072;

// With fewer pieces than this for each thread, sequences are cut at splits.
constexpr std::size_t FEW_PIECES = 8;

// Claims that each thread makes at least, where there are pieces enough: a thread that is late is late
// by one of them.
constexpr std::size_t CLAIMS = 32;

std::size_t first_seen(std::size_t position, std::size_t window) {
    return window != 0 && position >= window ? position - window + 1 : 0;
}

class Cutter {
public:
    Cutter(const AttentionCall& call, KvCache& cache, const KvBatch& batch)
        : call_(call), cache_(cache), batch_(batch), shared_(call.heads / cache.kv_heads()) {
        const std::size_t width = cache.shape().width;
        chunk_heads_ = std::min(shared_, MAX_PIECE_HEADS);
        chunk_tokens_ = std::max<std::size_t>(
            1, std::min(PIECE_VALUES / width, MAX_PIECE_ROWS) / chunk_heads_);
    }

    std::vector<AttentionPiece> cut() {
        pieces_.reserve((batch_.tokens() / chunk_tokens_ + batch_.rows()) * cache_.kv_heads() *
                        ((shared_ + chunk_heads_ - 1) / chunk_heads_));
        for (std::size_t row = 0; row < batch_.rows(); ++row)
            for (std::size_t token = batch_.begin(row); token < batch_.end(row); token += chunk_tokens_)
                for (std::size_t head = 0; head < cache_.kv_heads(); ++head) {
                    const KvView view = cache_.view(call_.group, call_.layer, head, batch_.table(call_.group, row));
                    const std::size_t tokens = std::min(chunk_tokens_, batch_.end(row) - token);
                    for (std::size_t first = 0; first < shared_; first += chunk_heads_)
                        add(view, token, tokens, head * shared_ + first, std::min(chunk_heads_, shared_ - first));
                }
        return std::move(pieces_);
    }

private:
    void add(const KvView& view, std::size_t token, std::size_t tokens, std::size_t head, std::size_t heads) {
        const std::size_t dims = view.shape.head_dim, position = batch_.position(token);
        AttentionPiece piece{};
        piece.view = view;
        piece.query = call_.query + token * call_.query_stride + head * dims;
        piece.query_stride = call_.query_stride;
        piece.out = call_.out + (token * call_.heads + head) * dims;
        piece.out_stride = call_.heads * dims;
        piece.position = position;
        piece.tokens = tokens;
        piece.heads = heads;
        piece.first_split = first_seen(position, call_.window) / SPLIT_KEYS;
        piece.end_split = (position + tokens - 1) / SPLIT_KEYS + 1;
        piece.scale = call_.scale;
        piece.softcap = call_.softcap;
        piece.slopes = call_.slopes == nullptr ? nullptr : call_.slopes + head;
        piece.sinks = call_.sinks == nullptr ? nullptr : call_.sinks + head;
        piece.window = call_.window;
        pieces_.push_back(piece);
    }

    const AttentionCall& call_;
    KvCache& cache_;
    const KvBatch& batch_;
    std::size_t shared_;
    std::size_t chunk_heads_;
    std::size_t chunk_tokens_;
    std::vector<AttentionPiece> pieces_;
};

std::size_t cost(const AttentionPiece& piece) {
    const std::size_t seen = piece.position + piece.tokens - first_seen(piece.position, piece.window);
    return piece.tokens * piece.heads * seen;
}

// The longest first, so that no thread is left with one when the others are done.
void sort_by_cost(std::vector<AttentionPiece>& pieces) {
    const auto costs_more = [](const AttentionPiece& a, const AttentionPiece& b) { return cost(a) > cost(b); };
    if (!std::is_sorted(pieces.begin(), pieces.end(), costs_more))
        std::stable_sort(pieces.begin(), pieces.end(), costs_more);
}

// Computes the pieces, each thread some that follow one another: in order it can fetch the next
// one's keys while it computes.
void attend_all(std::vector<AttentionPiece>& pieces, Pool& pool) {
    const std::size_t claims = CLAIMS * static_cast<std::size_t>(pool.threads());
    const std::size_t run = pool.threads() == 1 ? pieces.size() : std::max<std::size_t>(1, pieces.size() / claims);
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i)
        if ((i + 1) % run != 0) pieces[i].next = &pieces[i + 1];
    pool.run((pieces.size() + run - 1) / run, [&](std::size_t claim) {
        const std::size_t end = std::min(pieces.size(), (claim + 1) * run);
        for (std::size_t i = claim * run; i < end; ++i) kernels().attend(pieces[i]);
    });
}

std::size_t partial_floats(const AttentionPiece& piece) {
    return piece.tokens * piece.heads * (piece.view.shape.width + 2);
}

// Every split of every piece by itself, then the merges.
void attend_by_splits(std::vector<AttentionPiece>& pieces, Pool& pool) {
    std::size_t floats = 0;
    for (const AttentionPiece& piece : pieces)
        floats += partial_floats(piece) * (piece.end_split - piece.first_split);
    std::vector<float> partials(floats);
    std::vector<AttentionPiece> splits;
    float* at = partials.data();
    for (AttentionPiece& piece : pieces) {
        piece.partial = at;
        for (std::size_t s = piece.first_split; s < piece.end_split; ++s, at += partial_floats(piece)) {
            splits.push_back(piece);
            splits.back().first_split = s;
            splits.back().end_split = s + 1;
            splits.back().partial = at;
        }
    }
    attend_all(splits, pool);
    pool.run(pieces.size(), [&](std::size_t i) { kernels().merge_splits(pieces[i]); });
}

}  // namespace

void attend_batch(const AttentionCall& call, KvCache& cache, const KvBatch& batch, Pool& pool) {
    std::vector<AttentionPiece> pieces = Cutter(call, cache, batch).cut();
    const bool few = pieces.size() < FEW_PIECES * static_cast<std::size_t>(pool.threads());
    const bool long_enough = std::any_of(pieces.begin(), pieces.end(), [](const AttentionPiece& piece) {
        return piece.end_split - piece.first_split > 1;
    });
    if (pool.threads() > 1 && few && long_enough) {
        attend_by_splits(pieces, pool);
        return;
    }
    if (pool.threads() > 1) sort_by_cost(pieces);
    attend_all(pieces, pool);
}

}  // namespace octavo
