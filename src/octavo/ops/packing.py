"""Which packed format a weight gets, and how many bytes it then has.

Owns: the choice by the weights' own formats and the `dtype` that was asked for, and the sizes, so
that memory can be planned before anything is loaded.
Does not know: kernels, arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

DTYPES = ("auto", "bfloat16", "float32")

PADDED_OUTPUTS = 64
"""Packed outputs are padded to a multiple of this (csrc/bind_linear.cpp)."""


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


def loss(source: str, packed: str) -> str | None:
    """What a weight of format `source` loses when it is packed as `packed`, in words."""
    if packed == "f32" or source == packed:
        return None
    name = {"f32": "float32", "f16": "float16"}.get(source, source.removeprefix("gguf:"))
    return f"{name} weights are rounded to bfloat16"
