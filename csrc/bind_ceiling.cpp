// Measuring the machine: one timed run at a time; octavo.bench.ceilings repeats and takes medians.
#include "bind.hpp"
#include "buffer.hpp"
#include "kernels.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

// Bytes claimed at a time: many claims a run, and each long against the cost of a claim.
constexpr std::size_t PIECE = std::size_t{1} << 20;
// More rounds a piece would overflow the 32-bit sums of the products of 8-bit numbers.
constexpr std::size_t MOST_ROUNDS = std::size_t{1} << 20;
constexpr std::size_t MOST_PIECES = std::size_t{1} << 20;

const Kernels& table_of(const std::string& isa) {
    if (isa.empty()) return kernels();
    const Kernels* const table = kernels_of(isa.c_str());
    require(table != nullptr, "this processor and build have no kernels for '" + isa + "'");
    return *table;
}

double seconds_since(Clock::time_point begun) {
    return std::chrono::duration<double>(Clock::now() - begun).count();
}

// Memory in huge pages, every page of it touched, to be read from front to back.
class ReadCeiling {
public:
    ReadCeiling(std::size_t bytes, Pool& pool) {
        require(bytes >= PIECE && bytes / PIECE < MOST_PIECES,
                "bytes is " + std::to_string(bytes) + "; it must be from 1 MiB to 1 TiB");
        pieces_ = bytes / PIECE;
        buffer_ = Buffer(pieces_ * PIECE);
        nb::gil_scoped_release released;
        pool.run(pieces_, [&](std::size_t i) {
            float* const begin = buffer_.as<float>() + i * (PIECE / sizeof(float));
            std::fill(begin, begin + PIECE / sizeof(float), 1.0f);
        });
    }

    std::size_t bytes() const { return buffer_.bytes(); }

    double run(Pool& pool, const std::string& isa) const {
        const Kernels& table = table_of(isa);
        std::atomic<float> sink{0.0f};
        nb::gil_scoped_release released;
        const Clock::time_point begun = Clock::now();
        pool.run(pieces_, [&](std::size_t i) {
            const float* const begin = buffer_.as<float>() + i * (PIECE / sizeof(float));
            sink.store(table.ceiling_read(begin, PIECE), std::memory_order_relaxed);
        });
        return seconds_since(begun);
    }

private:
    std::size_t pieces_ = 0;
    Buffer buffer_;
};

std::pair<double, double> dot_ceiling(const std::string& kind, std::size_t rounds, std::size_t pieces,
                                      Pool& pool, const std::string& isa) {
    const Kernels& table = table_of(isa);
    const auto loop = kind == "float32" ? table.ceiling_float
                      : kind == "bfloat16" ? table.ceiling_bf16
                      : kind == "int8" ? table.ceiling_int8
                                       : nullptr;
    require(loop != nullptr, "kind is '" + kind + "'; it must be float32, bfloat16 or int8");
    require(rounds > 0 && rounds <= MOST_ROUNDS, "rounds is " + std::to_string(rounds) + "; it must be from 1 to " +
                                                     std::to_string(MOST_ROUNDS));
    require(pieces > 0 && pieces <= MOST_PIECES, "pieces is " + std::to_string(pieces) + "; it must be from 1 to " +
                                                     std::to_string(MOST_PIECES));
    std::atomic<double> operations{0.0};
    std::atomic<float> sink{0.0f};
    nb::gil_scoped_release released;
    const Clock::time_point begun = Clock::now();
    pool.run(pieces, [&](std::size_t) {
        float out = 0.0f;
        operations.fetch_add(loop(rounds, &out), std::memory_order_relaxed);
        sink.store(out, std::memory_order_relaxed);
    });
    return {operations.load(), seconds_since(begun)};
}

nb::dict dot_paths(const std::string& isa) {
    const Kernels& table = table_of(isa);
    nb::dict paths;
    paths["float32"] = "float32";
    paths["bfloat16"] = table.bf16_path;
    paths["int8"] = table.int8_path;
    return paths;
}

}  // namespace

void bind_ceiling(nb::module_& module) {
    nb::class_<ReadCeiling>(module, "ReadCeiling", "Memory in huge pages, for measuring how fast it is read.")
        .def(nb::init<std::size_t, Pool&>(), nb::arg("bytes"), nb::arg("pool"))
        .def_prop_ro("bytes", &ReadCeiling::bytes)
        .def("run", &ReadCeiling::run, nb::arg("pool"), nb::arg("isa") = "",
             "Reads all of it once; the seconds that took.");
    module.def("dot_ceiling", &dot_ceiling, nb::arg("kind"), nb::arg("rounds"), nb::arg("pieces"),
               nb::arg("pool"), nb::arg("isa") = "",
               "Computes products of `kind` (\"float32\", \"bfloat16\", \"int8\") from the first-level cache: "
               "(operations, seconds). Raises ValueError for another kind, a size out of range, an "
               "instruction set that cannot run here.");
    module.def("dot_paths", &dot_paths, nb::arg("isa") = "",
               "By kind, the instructions that an instruction set multiplies with.");
}

}  // namespace octavo
