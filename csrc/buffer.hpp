// Memory for packed weights and the KV pool: aligned, and in huge pages where the system has them.
//
// Owns: allocation and release of large buffers.
// Does not know: what lies in them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {

class Buffer {
public:
    Buffer() = default;

    // `bytes` of memory that reads as zero and takes physical pages as it is touched.
    explicit Buffer(std::size_t bytes) : bytes_(bytes) {
        if (bytes == 0) return;
#if defined(__linux__)
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        // Fewer address translations: worth a fifth and more of the read bandwidth.
        madvise(memory, bytes, MADV_HUGEPAGE);
        data_ = memory;
#else
        data_ = std::calloc(1, bytes);
        if (data_ == nullptr) throw std::bad_alloc();
#endif
    }

    Buffer(Buffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
        other.data_ = nullptr;
        other.bytes_ = 0;
    }

    Buffer& operator=(Buffer&& other) noexcept {
        if (this != &other) {
            release();
            data_ = other.data_;
            bytes_ = other.bytes_;
            other.data_ = nullptr;
            other.bytes_ = 0;
        }
        return *this;
    }

    ~Buffer() { release(); }

    template <class T>
    T* as() { return static_cast<T*>(data_); }
    template <class T>
    const T* as() const { return static_cast<const T*>(data_); }
    std::size_t bytes() const { return bytes_; }

private:
    void release() {
        if (data_ == nullptr) return;
#if defined(__linux__)
        munmap(data_, bytes_);
#else
        std::free(data_);
#endif
    }

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace octavo
