"""Which packed format a weight gets, and how many bytes it then has.

Owns: the choice by the weights' own formats and the `dtype` that was asked for, and the sizes, so
that memory can be planned before anything is loaded.
Does not know: kernels, arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

DTYPES = ("auto", "bfloat16", "float32")
QUANTIZE = ("none", "int8", "int4")
"""What weights of plain floats may be rounded to at load."""

PADDED_OUTPUTS = 64
"""Packed outputs are padded to a multiple of this (csrc/float_weight.cpp)."""


_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class CodeFormat:
    """Bits of a code; the inputs of a group (0: all) and the bytes of its scale, and of its minimum
    or zero. `origins`: "gguf" (a GGUF type), "codes" (weights that have `GroupedCodes`), "float"
    (float weights are rounded to it)."""

    bits: int
    group: int
    scale_bytes: int
    origins: tuple[str, ...] = ("gguf",)


CODE_FORMATS = {
    "Q4_0": CodeFormat(4, 32, 2),
    "Q4_1": CodeFormat(4, 32, 4),
    "Q5_0": CodeFormat(8, 32, 2),
    "Q5_1": CodeFormat(8, 32, 4),
    "Q8_0": CodeFormat(8, 32, 2),
    "Q4_K": CodeFormat(4, 32, 8),
    "Q5_K": CodeFormat(8, 32, 8),
    "Q6_K": CodeFormat(8, 16, 4),
    "IQ4_NL": CodeFormat(4, 32, 2),
    "int4": CodeFormat(4, 32, 4, ("float",)),
    "int8": CodeFormat(8, 0, 4, ("float", "codes")),
    "uint4b8/f16": CodeFormat(4, 32, 2, ("codes",)),
    "uint4b8/f32": CodeFormat(4, 32, 4, ("codes",)),
    "uint4/f16": CodeFormat(4, 32, 4, ("codes",)),
    "uint4/f32": CodeFormat(4, 32, 8, ("codes",)),
    "uint8b128/f16": CodeFormat(8, 32, 2, ("codes",)),
    "uint8b128/f32": CodeFormat(8, 32, 4, ("codes",)),
    "uint8/f16": CodeFormat(8, 32, 4, ("codes",)),
    "uint8/f32": CodeFormat(8, 32, 8, ("codes",)),
}
"""As csrc/code_sources.cpp packs them. "uint4b8" are codes of 4 bits less 8; "uint4" have a zero
for each group; after the slash the type of the scales."""


def codes_format(bits: int, zero: int | None, group: int, inputs: int, half: bool) -> str:
    """`RawWeight.format` of `GroupedCodes`; `half`: all scales are float16 values. Groups that are
    not made of whole spans of 32 inputs get a name that no packed format has."""
    kind = f"uint{bits}" if zero is None else f"uint{bits}b{zero}"
    if group < inputs and group % 32:
        return f"codes:{kind} (groups of {group})"
    if kind == "uint8b128" and group >= inputs:
        return "codes:int8"
    return f"codes:{kind}/{'f16' if half else 'f32'}"


def code_format(source: str, dtype: str = "auto", quantize: str = "none") -> str | None:
    """The name in CODE_FORMATS under which a weight of `RawWeight.format` is packed; None where
    it is packed as floats."""
    origin, _, name = source.rpartition(":")
    form = CODE_FORMATS.get(name)
    if dtype == "auto" and form is not None and origin in form.origins:
        return name
    return quantize if quantize != "none" and source in _FLOATS else None


def code_bytes(name: str, outputs: int, inputs: int) -> int:
    """Bytes of an (outputs, inputs) matrix packed as `name`, without its bias; the last block
    counted as the widest instruction set pads it."""
    form = CODE_FORMATS[name]
    padded = -(-outputs // PADDED_OUTPUTS) * PADDED_OUTPUTS
    width = -(-inputs // 32) * 32
    groups = width // form.group if form.group else 1
    return padded * (width * form.bits // 8 + groups * form.scale_bytes)


def packed_format(formats: Sequence[str], dtype: str) -> str:
    """ "f32" or "bf16" for weights of `RawWeight.format`s that are packed as one.

    By itself ("auto") a weight keeps float32 where the file has it; all others go to bf16.
    """
    if dtype == "float32" or (dtype == "auto" and "f32" in formats):
        return "f32"
    return "bf16"


def packed_bytes(formats: Sequence[str], outputs: int, inputs: int, dtype: str) -> int:
    """Bytes of a packed (outputs, inputs) matrix without its bias."""
    padded = -(-outputs // PADDED_OUTPUTS) * PADDED_OUTPUTS
    if packed_format(formats, dtype) == "f32":
        return padded * inputs * 4
    return padded * (inputs + inputs % 2) * 2


def stack_bytes(
    parts: Sequence[tuple[str, int]], inputs: int, dtype: str = "auto", quantize: str = "none"
) -> int:
    """Bytes of matrices that are packed as one, without biases. `parts` has the `RawWeight.format`
    and the outputs of each."""
    codes = [code_format(source, dtype, quantize) for source, _ in parts]
    if len({code is None for code in codes}) > 1:
        return sum(stack_bytes([part], inputs, dtype, quantize) for part in parts)
    if codes[0] is None:
        outputs = sum(count for _, count in parts)
        return packed_bytes([source for source, _ in parts], outputs, inputs, dtype)
    runs = groupby(zip(codes, parts, strict=True), key=lambda entry: entry[0] or "")
    return sum(code_bytes(code, sum(n for _, (_, n) in run), inputs) for code, run in runs)


def loss(source: str, packed: str) -> str | None:
    """What a weight of format `source` loses when it is packed as `packed`, in words."""
    kind = source.rpartition(":")[2]
    if packed in ("f32", kind):
        return None
    names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
    name = names.get(kind, kind)
    return f"{name} weights are rounded to {names.get(packed, packed)}"
