"""Random `GroupedCodes` of each packed format, with the weights that they stand for.

Owns: arithmetic on whole arrays, without the pieces and orders of octavo's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.ops import GroupedCodes, RawWeight
from octavo.ops.grouped_codes import raw_weight


def grouped(
    name: str, outputs: int, inputs: int, group: int, *, shuffled: int | None = None
) -> tuple[RawWeight, Any]:
    """`name` as in packing.CODE_FORMATS ("uint4b8/f16"). `shuffled`: a seed by which inputs are
    dealt to groups."""
    rng = np.random.default_rng(outputs * inputs + group)
    kind, _, held = name.partition("/")
    bits = 8 if kind.startswith("uint8") else 4
    zero = int(kind.partition("b")[2]) if "b" in kind else None
    groups = -(-inputs // group)
    codes = rng.integers(0, 1 << bits, (outputs, inputs)).astype(np.uint8)
    scales = rng.uniform(-0.05, 0.05, (outputs, groups)).astype(np.float32)
    if held == "f16":
        scales = scales.astype(np.float16).astype(np.float32)
        scales[0, 0] = 2.0**-24  # the least that float16 can say
    zeros = rng.integers(0, 1 << bits, scales.shape).astype(np.uint8) if zero is None else None
    order = None if shuffled is None else np.random.default_rng(shuffled).permutation(inputs)

    def rows(begin: int, end: int) -> tuple[Any, Any, Any]:
        some = None if zeros is None else zeros[begin:end]
        return codes[begin:end], scales[begin:end], some

    each = np.arange(inputs) // group
    if order is not None:
        each = each[np.argsort(order)]
    less = np.float32(zero or 0) if zeros is None else zeros[:, each].astype(np.float32)
    weights = (codes.astype(np.float32) - less) * scales[:, each]
    made = GroupedCodes(bits, inputs, group, zero, rows, lambda: order)
    return raw_weight("w", outputs, f"codes:{name}", made), weights
