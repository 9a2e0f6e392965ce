// float16 to float and back, without instructions for it.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo::OCTAVO_ISA {

inline float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
    std::uint32_t exponent = (half >> 10) & 31u, mantissa = half & 1023u;
    if (exponent == 0) {  // zero or a denormal: mantissa * 2^-24, exactly
        const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    const std::uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace octavo::OCTAVO_ISA
