#include "pool.hpp"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace octavo {

namespace {

// About 20 microseconds: longer than the gap between two ops of a step, shorter than anything that
// an idle engine would notice.
constexpr int SPINS = 4000;

inline void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

constexpr int FIELD = 24;
constexpr std::uint64_t MASK = (std::uint64_t{1} << FIELD) - 1;

std::uint64_t run_of(std::uint64_t ticket) { return ticket >> (2 * FIELD); }

}  // namespace

Pool::Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker(); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_.store(true);
    }
    woken_.notify_all();
    for (std::thread& thread : workers_) thread.join();
}

void Pool::run_erased(std::size_t pieces, Call call, void* body) {
    if (workers_.empty() || pieces < 2) {
        for (std::size_t i = 0; i < pieces; ++i) call(body, i);
        return;
    }
    call_ = call;
    body_ = body;
    done_.store(0, std::memory_order_relaxed);
    const std::uint64_t run = run_of(ticket_.load(std::memory_order_relaxed)) + 1;
    ticket_.store((run << (2 * FIELD)) | (std::uint64_t{pieces} << FIELD), std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        woken_.notify_all();
    }
    claim_until_done();
    for (int spins = 0; done_.load(std::memory_order_acquire) < pieces; ++spins)
        spins < SPINS ? pause() : std::this_thread::yield();
}

void Pool::claim_until_done() {
    while (true) {
        const std::uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
        const std::uint64_t piece = ticket & MASK;
        if (piece >= ((ticket >> FIELD) & MASK)) return;
        call_(body_, piece);
        done_.fetch_add(1, std::memory_order_release);
    }
}

void Pool::worker() {
    std::uint64_t seen = 0;
    const auto same = [&] { return run_of(ticket_.load(std::memory_order_seq_cst)) == seen; };
    while (!stopping_.load(std::memory_order_relaxed)) {
        for (int spins = 0; spins < SPINS && same(); ++spins) pause();
        if (same()) {
            std::unique_lock<std::mutex> lock(mutex_);
            asleep_.fetch_add(1, std::memory_order_seq_cst);
            woken_.wait(lock, [&] { return stopping_.load() || !same(); });
            asleep_.fetch_sub(1, std::memory_order_relaxed);
            if (stopping_.load()) return;
        }
        seen = run_of(ticket_.load(std::memory_order_relaxed));
        claim_until_done();
    }
}

}  // namespace octavo
