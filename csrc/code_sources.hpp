// The formats that a packed matrix of codes can take over without loss.
//
// Owns: their names, their layouts, and reading a row of each (GGUF's block formats).
// Does not know: threads, Python, how a matrix is packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/code_types.hpp"

namespace octavo {

// One output's weights: `codes` for each input, `scales` and `minima` for each group.
struct CodeRow {
    std::uint8_t* codes;
    float* scales;
    float* minima;
};

struct CodeFormat {
    const char* name;
    CodeLayout layout;          // `inputs` is not set
    std::size_t block_weights;  // of the source; 0: no source, codes are given as they are
    std::size_t block_bytes;
    void (*read)(const std::uint8_t* source, std::size_t blocks, CodeRow to);
};

// The format called "Q4_0", ..., "IQ4_NL" (GGUF types), "int4", "int8", or "uint4b8/f16" and its kind;
// null for another name.
const CodeFormat* find_code_format(const std::string& name);

}  // namespace octavo
