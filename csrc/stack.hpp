// Packed matrices of either family, one after another along their outputs.
//
// Owns: which parts there are, and in which columns their products go.
// Does not know: how a part is multiplied (float_weight, code_product), Python. The parts are the
// caller's, who keeps them.
#pragma once

#include <cstddef>
#include <vector>

#include "code_matrix.hpp"
#include "float_weight.hpp"
#include "pool.hpp"

namespace octavo {

class Stack {
public:
    // Throws std::invalid_argument where the inputs differ from those of the parts before.
    void add(const FloatWeight& weight);
    // `bias` (or null) has a value for each of their outputs.
    void add(const std::vector<const CodeMatrix*>& parts, const float* bias);

    std::size_t inputs() const { return inputs_; }
    std::size_t outputs() const { return outputs_; }

    // x (rows, inputs) times all parts, biases included, to `out` (rows, outputs).
    void multiply(const float* x, std::size_t rows, float* out, Pool& pool) const;

private:
    struct Part {
        std::size_t column;
        const FloatWeight* floats;  // null: codes
        std::vector<const CodeMatrix*> codes;
        const float* bias;
    };

    void take(std::size_t inputs, std::size_t outputs);

    std::vector<Part> parts_;
    std::size_t inputs_ = 0, outputs_ = 0;
};

}  // namespace octavo
