"""Arithmetic on `GroupedCodes`: their weights as float32, their scales for the compiled kernels.

Owns: what a code stands for.
Does not know: files and their formats, how codes are packed (cpu_codes).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops import GroupedCodes, RawWeight

Floats = NDArray[np.float32]

SPAN = 32
"""Inputs that share a scale in a kernel: larger groups repeat theirs."""

_PIECE = 1 << 18
"""Weights that are worked on at once: they stay in the processor's cache."""


def raw_weight(
    name: str, outputs: int, weight_format: str, codes: GroupedCodes, data: Any = None
) -> RawWeight:
    """`codes` as a weight of `outputs` rows; `weight_format` by `packing.codes_format`."""

    def some(index: Any) -> RawWeight:
        chosen = np.arange(outputs)[index]
        part = _take_codes(codes, chosen)
        return raw_weight(name, len(chosen), weight_format, part, data)

    return RawWeight(
        name,
        (outputs, codes.inputs),
        weight_format,
        data,
        lambda: dequantize(codes, 0, outputs),
        lambda begin, end: dequantize(codes, begin, end),
        some,
        codes,
    )


def dequantize(codes: GroupedCodes, begin: int, end: int) -> Floats:
    """Outputs `begin` to `end` as float32 (outputs, inputs)."""
    out = np.empty((end - begin, codes.inputs), np.float32)
    order = codes.order()
    group_of = np.arange(codes.inputs) // codes.group
    if order is not None:
        group_of[order] = group_of.copy()
    step = max(1, _PIECE // codes.inputs)
    for first in range(begin, end, step):
        last = min(first + step, end)
        values, scales, zeros = codes.rows(first, last)
        weights = out[first - begin : last - begin]
        weights[...] = values
        weights -= np.float32(codes.zero or 0) if zeros is None else zeros.take(group_of, axis=1)
        weights *= scales.take(group_of, axis=1)
    return out


def spread(values: Any, codes: GroupedCodes) -> Any:
    """Scales or zeros (rows, groups), one for each `SPAN` inputs. Raises ValueError where a group
    is not made of whole spans."""
    spans = -(-codes.inputs // SPAN)
    if values.shape[1] == 1:
        return np.repeat(values, spans, axis=1)
    if codes.group % SPAN:
        raise ValueError(f"groups of {codes.group} inputs are not whole spans of {SPAN}")
    return np.ascontiguousarray(np.repeat(values, codes.group // SPAN, axis=1)[:, :spans])


def _take_codes(codes: GroupedCodes, index: NDArray[np.int64]) -> GroupedCodes:
    """The outputs `index`."""

    def rows(begin: int, end: int) -> tuple[Any, Any, Any]:
        chosen = index[begin:end]
        low = int(chosen.min())
        values, scales, zeros = codes.rows(low, int(chosen.max()) + 1)
        at = chosen - low
        return values[at], scales[at], None if zeros is None else zeros[at]

    return GroupedCodes(codes.bits, codes.inputs, codes.group, codes.zero, rows, codes.order)
