#include "buffer.hpp"

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {

namespace {

constexpr std::size_t HUGE_PAGE = std::size_t{2} << 20;
constexpr std::size_t LINE = 64;
// Buffers below a quarter of it share a region: a matrix of a small model alone would not fill a huge
// page, and without those its weights are read at half the speed.
constexpr std::size_t REGION = std::size_t{64} << 20;

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

void* aligned(void* memory, std::size_t unit) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    return reinterpret_cast<void*>(round_up(address, unit));
}

#if defined(__linux__)

// Zero, and at a border of huge pages.
std::shared_ptr<void> new_region(std::size_t bytes) {
    const std::size_t mapped = round_up(bytes, HUGE_PAGE) + HUGE_PAGE;
    void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    void* const at = aligned(memory, HUGE_PAGE);
    // Fewer address translations: worth a fifth and more of the read bandwidth.
    madvise(at, mapped - HUGE_PAGE, MADV_HUGEPAGE);
    return {at, [memory, mapped](void*) { munmap(memory, mapped); }};
}

#else

std::shared_ptr<void> new_region(std::size_t bytes) {
    void* const memory = std::calloc(1, bytes + LINE);
    if (memory == nullptr) throw std::bad_alloc();
    return {aligned(memory, LINE), [memory](void*) { std::free(memory); }};
}

#endif

// The region that small buffers are cut from, front to back. It lives as long as any of them does.
struct Shared {
    std::mutex mutex;
    std::shared_ptr<void> region;
    std::size_t used = REGION;
};

Shared& shared() {
    static Shared* const instance = new Shared;  // not destroyed: buffers may be released at exit
    return *instance;
}

}  // namespace

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (bytes >= REGION / 4) {
        region_ = new_region(bytes);
        data_ = region_.get();
        return;
    }
    Shared& at = shared();
    const std::lock_guard<std::mutex> lock(at.mutex);
    if (at.used + bytes > REGION) {
        at.region = new_region(REGION);
        at.used = 0;
    }
    region_ = at.region;
    data_ = static_cast<char*>(at.region.get()) + at.used;
    at.used = round_up(at.used + bytes, LINE);
}

}  // namespace octavo
