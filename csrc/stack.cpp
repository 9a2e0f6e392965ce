#include "stack.hpp"

#include "checks.hpp"
#include "code_product.hpp"

namespace octavo {

void Stack::take(std::size_t inputs, std::size_t outputs) {
    require(inputs_ == 0 || inputs == inputs_, text(inputs) + " inputs beside " + text(inputs_));
    inputs_ = inputs;
    outputs_ += outputs;
}

void Stack::add(const FloatWeight& weight) {
    parts_.push_back({outputs_, &weight, {}, nullptr});
    take(weight.inputs(), weight.outputs());
}

void Stack::add(const std::vector<const CodeMatrix*>& parts, const float* bias) {
    parts_.push_back({outputs_, nullptr, parts, bias});
    for (const CodeMatrix* part : parts) take(part->inputs(), part->outputs());
}

void Stack::multiply(const float* x, std::size_t rows, float* out, Pool& pool) const {
    for (const Part& part : parts_) {
        if (part.floats != nullptr)
            part.floats->multiply(x, rows, out + part.column, outputs_, pool);
        else
            multiply_codes(x, rows, part.codes, part.bias, out + part.column, outputs_, pool);
    }
}

}  // namespace octavo
