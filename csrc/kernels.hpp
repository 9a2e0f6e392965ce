// The kernels of one instruction set, as a table of functions over plain pointers.
//
// Owns: the table's type, the choice of the instruction set at run time.
// Does not know: Python, threads. A kernel computes one piece (a block of outputs, a span of rows)
// and is called by many threads; it checks nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows.hpp"
#include "kernels/code_types.hpp"
#include "kv_types.hpp"

namespace octavo {

struct Kernels {
    const char* isa;
    int vector;  // floats in a vector

#include "kernels/table.inc"
};

// The table in use: the best that the processor has, or the one that OCTAVO_ISA names ("avx512bf16",
// "avx512", "avx2", "generic"). Throws std::runtime_error for a name that is unknown or that this
// processor or build cannot run. Decided once.
const Kernels& kernels();

// The table called `isa`, or null where this processor and build cannot run it: for measuring.
const Kernels* kernels_of(const char* isa);

// Names of the tables that this processor and this build can run, best first.
const char* const* available_isas(std::size_t* count);

}  // namespace octavo
