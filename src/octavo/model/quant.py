"""Dequantises GGUF tensor types to float32, in pieces that stay in the processor's cache.

Owns: own kernels for the types that small models are made of, and the way to the `gguf` package
for all others.
Does not know: files.

Bitwise the same as `gguf.quants`, which works on whole tensors and is several times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.model.errors import ModelError

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_PIECE = 1 << 18
"""Weights that are worked on at once."""


def dequantize(kind: str, rows: Bytes, shape: tuple[int, ...]) -> Floats:
    """`rows` (outputs, bytes of a row) of GGUF type `kind` as float32 of `shape`."""
    out = np.empty(shape, dtype=np.float32)
    flat, source = out.reshape(-1, shape[-1]), rows.reshape(-1, rows.shape[-1])
    unpack = _OWN.get(kind) or _foreign(kind)
    step = max(1, _PIECE // shape[-1])
    for begin in range(0, len(flat), step):
        unpack(source[begin : begin + step], flat[begin : begin + step])
    return out


def _foreign(kind: str) -> Callable[[Bytes, Floats], None]:
    # Imported here: it costs 0.1 s that a model of the common types need not pay.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as whole

    if kind not in GGMLQuantizationType.__members__:
        raise ModelError(
            f"the installed gguf package does not know the tensor type {kind}",
            "unsupported_tensor_type",
            "Update it: pip install --upgrade gguf",
        )
    number: Any = GGMLQuantizationType[kind]

    def unpack(source: Bytes, out: Floats) -> None:
        out[...] = whole(source, number)

    return unpack


def _halves(blocks: Bytes, begin: int) -> Floats:
    """The float16 at byte `begin` of each block, as a column."""
    return blocks[:, begin : begin + 2].view(np.float16).astype(np.float32)


def _f32(source: Bytes, out: Floats) -> None:
    out[...] = source.view("<f4")


def _f16(source: Bytes, out: Floats) -> None:
    out[...] = source.view("<f2")


def _bf16(source: Bytes, out: Floats) -> None:
    np.left_shift(source.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def _q8_0(source: Bytes, out: Floats) -> None:
    blocks = source.reshape(-1, 34)
    np.multiply(blocks[:, 2:].view(np.int8), _halves(blocks, 0), out=out.reshape(-1, 32))


def _q4_0(source: Bytes, out: Floats) -> None:
    blocks = source.reshape(-1, 18)
    scale, codes, weights = _halves(blocks, 0), blocks[:, 2:], out.reshape(-1, 32)
    np.multiply((codes & 15).view(np.int8) - np.int8(8), scale, out=weights[:, :16])
    np.multiply((codes >> 4).view(np.int8) - np.int8(8), scale, out=weights[:, 16:])


def _q4_1(source: Bytes, out: Floats) -> None:
    blocks = source.reshape(-1, 20)
    scale, codes, weights = _halves(blocks, 0), blocks[:, 4:], out.reshape(-1, 32)
    np.multiply(codes & 15, scale, out=weights[:, :16])
    np.multiply(codes >> 4, scale, out=weights[:, 16:])
    weights += _halves(blocks, 2)


def _fifth_bits(blocks: Bytes, begin: int) -> Bytes:
    """(blocks, 32): the fifth bit of each code, in place (0 or 16)."""
    bits = np.unpackbits(blocks[:, begin : begin + 4], axis=1, bitorder="little")
    return np.left_shift(bits, 4, dtype=np.uint8)


def _q5_0(source: Bytes, out: Floats) -> None:
    blocks = source.reshape(-1, 22)
    scale, codes, high = _halves(blocks, 0), blocks[:, 6:], _fifth_bits(blocks, 2)
    weights = out.reshape(-1, 32)
    low = (codes & 15 | high[:, :16]).view(np.int8) - np.int8(16)
    np.multiply(low, scale, out=weights[:, :16])
    np.multiply((codes >> 4 | high[:, 16:]).view(np.int8) - np.int8(16), scale, out=weights[:, 16:])


def _q5_1(source: Bytes, out: Floats) -> None:
    blocks = source.reshape(-1, 24)
    scale, codes, high = _halves(blocks, 0), blocks[:, 8:], _fifth_bits(blocks, 4)
    weights = out.reshape(-1, 32)
    np.multiply(codes & 15 | high[:, :16], scale, out=weights[:, :16])
    np.multiply(codes >> 4 | high[:, 16:], scale, out=weights[:, 16:])
    weights += _halves(blocks, 2)


_OWN: dict[str, Callable[[Bytes, Floats], None]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
}
