// Memory for packed weights, the KV pool and what passes between ops: aligned, and in huge pages
// where the system has them.
//
// Owns: allocation and release of large buffers.
// Does not know: what lies in them.
#pragma once

#include <cstddef>
#include <memory>

namespace octavo {

class Buffer {
public:
    Buffer() = default;

    // `bytes` of memory that reads as zero and takes physical pages as it is touched; begins at a
    // cache line. Throws std::bad_alloc.
    explicit Buffer(std::size_t bytes);

    template <class T>
    T* as() { return static_cast<T*>(data_); }
    template <class T>
    const T* as() const { return static_cast<const T*>(data_); }
    std::size_t bytes() const { return bytes_; }

private:
    std::shared_ptr<void> region_;  // what the memory is part of
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace octavo
