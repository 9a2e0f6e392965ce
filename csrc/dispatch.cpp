// Which instruction set's kernels run.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace octavo {

#define OCTAVO_DECLARE(name) \
    namespace name {         \
    extern const Kernels table; \
    }
OCTAVO_DECLARE(generic)
OCTAVO_DECLARE(avx2)
OCTAVO_DECLARE(avx512)
OCTAVO_DECLARE(avx512bf16)
#undef OCTAVO_DECLARE

namespace {

struct Choice {
    const Kernels* table;
    bool (*runs)();
};

bool always() { return true; }

#if defined(__x86_64__) || defined(_M_X64)
[[maybe_unused]] bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
#if defined(OCTAVO_EMULATE)
[[maybe_unused]] bool has_avx512() { return has_avx2(); }
[[maybe_unused]] bool has_avx512bf16() { return has_avx2(); }
#else
[[maybe_unused]] bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
[[maybe_unused]] bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif
#endif

const Choice choices[] = {
#if defined(OCTAVO_HAS_avx512bf16)
    {&avx512bf16::table, has_avx512bf16},
#endif
#if defined(OCTAVO_HAS_avx512)
    {&avx512::table, has_avx512},
#endif
#if defined(OCTAVO_HAS_avx2)
    {&avx2::table, has_avx2},
#endif
    {&generic::table, always},
};

const Kernels* choose() {
    const char* forced = std::getenv("OCTAVO_ISA");
    const bool any = forced == nullptr || *forced == '\0';
    std::string names;
    for (const Choice& choice : choices) {
        if (!choice.runs()) continue;
        if (any || std::strcmp(forced, choice.table->isa) == 0) return choice.table;
        names += names.empty() ? "" : ", ";
        names += choice.table->isa;
    }
    throw std::runtime_error(std::string("OCTAVO_ISA is '") + forced +
                             "'; this processor and build can run: " + names);
}

}  // namespace

const Kernels& kernels() {
    static const Kernels* const chosen = choose();
    return *chosen;
}

const Kernels* kernels_of(const char* isa) {
    for (const Choice& choice : choices)
        if (choice.runs() && std::strcmp(isa, choice.table->isa) == 0) return choice.table;
    return nullptr;
}

const char* const* available_isas(std::size_t* count) {
    static const char* names[sizeof choices / sizeof choices[0]];
    static const std::size_t found = [] {
        std::size_t n = 0;
        for (const Choice& choice : choices)
            if (choice.runs()) names[n++] = choice.table->isa;
        return n;
    }();
    *count = found;
    return names;
}

}  // namespace octavo
