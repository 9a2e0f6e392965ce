// All kernels, compiled once for each instruction set: OCTAVO_ISA names the namespace, the compiler
// flags say what may be used. Includes headers of `kernels/` only, so that no inline function of the
// standard library is compiled with instructions that the processor may lack and then shared.
#include "../kernels.hpp"
#include "ceiling.hpp"
#include "attention.hpp"
#include "kv_tile.hpp"
#include "linear_float.hpp"
#include "act.hpp"
#include "code_rows.hpp"
#include "linear_codes.hpp"
#include "norm.hpp"
#include "sample.hpp"
#include "rope.hpp"
#include "route.hpp"

#define OCTAVO_TEXT2(x) #x
#define OCTAVO_TEXT(x) OCTAVO_TEXT2(x)

namespace octavo::OCTAVO_ISA {

extern const Kernels table;
const Kernels table = {
    .isa = OCTAVO_TEXT(OCTAVO_ISA),
    .vector = static_cast<int>(V::N),
    .linear_block = BLOCK,
    .bf16_inputs = sizeof(Bf16Weights::Input) == sizeof(std::uint16_t),
    .linear_f32 = linear_f32,
    .linear_bf16 = linear_bf16,
    .pack_f32 = pack_f32,
    .pack_bf16 = pack_bf16,
    .unpack_f32 = unpack_f32,
    .unpack_bf16 = unpack_bf16,
    .floats_to_bf16 = floats_to_bf16,
    .bf16_to_floats = bf16_to_floats,
    .norm = norm,
    .act = act,
    .add_scaled = add_scaled,
    .scale = scale,
    .bound = bound,
    .route = route,
    .peaks = peaks,
    .collect = collect,
    .count_above = count_above,
    .weights = weights,
    .log_sum = log_sum,
    .race = race,
    .code_block = static_cast<int>(CODE_BLOCK),
    .code_tile = CODE_TILE,
    .code_wide = code_wide,
    .quantize_row = quantize_row,
    .dequantize_row = dequantize_row,
    .linear_codes = linear_codes,
    .bf16_path = OCTAVO_BF16_PATH,
    .int8_path = OCTAVO_INT8_PATH,
    .ceiling_read = ceiling_read,
    .ceiling_float = ceiling_float,
    .ceiling_bf16 = ceiling_bf16,
    .ceiling_int8 = ceiling_int8,
    .rotate = rotate,
    .store_kv = store_kv,
    .attend = attend,
    .merge_splits = merge_splits,
};

}  // namespace octavo::OCTAVO_ISA
