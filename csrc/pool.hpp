// A pool of threads that claim small pieces of work.
//
// Owns: the threads, how pieces are handed out, spinning and sleeping.
// Does not know: what a piece is.
//
// Pieces are claimed one at a time from an atomic counter: on a shared machine a static split waits
// for the slowest core. Which thread computes a piece must not change its result. Between two runs
// the threads spin for some microseconds and then sleep, so that an idle engine uses no CPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace octavo {

class Pool {
public:
    // `threads` in all, the caller's included.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls work(i) once for each i in [0, pieces), and returns when all are done. Not reentrant;
    // one caller at a time. `work` must not throw; pieces must be below 2^24.
    template <class Work>
    void run(std::size_t pieces, Work&& work) {
        using Body = std::remove_reference_t<Work>;
        run_erased(
            pieces, [](void* body, std::size_t i) { (*static_cast<Body*>(body))(i); },
            const_cast<void*>(static_cast<const void*>(&work)));
    }

private:
    using Call = void (*)(void*, std::size_t);

    void run_erased(std::size_t pieces, Call call, void* body);
    void claim_until_done();
    void worker();

    std::vector<std::thread> workers_;
    Call call_ = nullptr;
    void* body_ = nullptr;
    // The run's number (16 bits), its pieces (24 bits) and the next piece to claim (24 bits), in one
    // word: whoever claims learns at once whether the claim is good. A claim that is good keeps its
    // run from ending; a thread that comes too late, even by several runs, finds out and harms none.
    alignas(64) std::atomic<std::uint64_t> ticket_{0};
    alignas(64) std::atomic<std::size_t> done_{0};
    std::atomic<int> asleep_{0};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::condition_variable woken_;
};

}  // namespace octavo
