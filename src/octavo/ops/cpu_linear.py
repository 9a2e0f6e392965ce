"""Packs float weights for the compiled kernels, a piece of rows at a time.

Owns: the way from a file's rows to `FloatWeight`, without a whole float32 copy where the source
allows it; weights of several families side by side.
Does not know: which format a weight gets (packing), or how a block is laid out (csrc).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops import RawWeight

PIECE = 1 << 20
"""Weights that are converted at once: bounds what packing takes beside the packed weights."""


@dataclass(slots=True)
class Stack:
    """Weights of different families, one after the other along their outputs."""

    parts: list[Any]

    @property
    def outputs(self) -> int:
        return sum(int(part.outputs) for part in self.parts)

    def linear(self, x: NDArray[np.float32], pool: Any) -> NDArray[np.float32]:
        return np.concatenate([part.linear(x, pool) for part in self.parts], axis=1)


def pack_float(
    native: Any, weights: Sequence[RawWeight], bias: Sequence[RawWeight], kind: str
) -> Any:
    """`weights` (outputs, inputs), stacked along their outputs, as one `FloatWeight` of `kind`.

    May run in several threads at once. Raises ValueError where shapes do not fit together.
    """
    inputs = {weight.shape[1] for weight in weights}
    if len(inputs) != 1:
        shapes = ", ".join(f"{weight.name} {weight.shape}" for weight in weights)
        raise ValueError(f"weights to be fused differ in their inputs: {shapes}")
    packed = native.FloatWeight(sum(w.shape[0] for w in weights), inputs.pop(), kind)
    first = 0
    for weight in weights:
        for rows in _pieces(weight):
            pack = packed.pack_halves if rows.dtype == np.uint16 else packed.pack_floats
            pack(first, rows)
            first += len(rows)
    if bias:
        values = [np.asarray(b.dequantize(), np.float32) for b in bias]
        packed.set_bias(np.concatenate(values))
    return packed


def _pieces(weight: RawWeight) -> Iterator[Any]:
    """The rows in order: float32, or uint16 that hold bf16."""
    step = max(1, PIECE // weight.shape[1])
    dtype = np.uint16 if weight.format == "bf16" else np.float32
    whole = None
    for begin in range(0, weight.shape[0], step):
        end = min(begin + step, weight.shape[0])
        if weight.format in ("f32", "bf16"):
            rows = weight.data[begin:end]
        elif weight.dequantize_rows is not None:
            rows = weight.dequantize_rows(begin, end)
        else:
            whole = weight.dequantize() if whole is None else whole
            rows = whole[begin:end]
        yield np.require(rows, dtype, ["C", "A"])  # a mapped file need not be aligned
