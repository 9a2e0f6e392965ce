"""Codes of 4 or 8 bits out of 32-bit words, and the order of inputs that a group index says.

Owns: bit arithmetic.
Does not know: schemes, files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.model.quantized.scheme import Module, groups_of

Bytes = NDArray[np.uint8]


def codes_of(words: Any, bits: int) -> Bytes:
    """(rows, words) of little-endian 32-bit words -> (rows, codes); the lowest bits come first."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return raw
    codes = np.empty((raw.shape[0], raw.shape[1] * 2), np.uint8)
    np.bitwise_and(raw, 15, out=codes[:, 0::2])
    np.right_shift(raw, 4, out=codes[:, 1::2])
    return codes


def group_order(module: Module, index: Any, group: int) -> NDArray[np.int64] | None:
    """The inputs in the order of their groups, for `index` (inputs,): the group of each. None where
    they are in it already, as they are where all indices are 0 (never filled in).

    Raises ModelError where a group does not have `group` inputs (the last: what is left).
    """
    groups = groups_of(module.inputs, group)
    # Words come unsigned; what is meant is a signed number.
    index = (index.view(np.int32) if index.dtype == np.uint32 else index).astype(np.int64)
    plain = np.arange(module.inputs) // group
    if groups == 1 or not index.any() or np.array_equal(index, plain):
        return None
    least, most = int(index.min()), int(index.max())
    if least < 0 or most >= groups:
        raise module.bad(f"g_idx goes from {least} to {most}, but there are {groups} groups")
    counts = np.bincount(index, minlength=groups)
    wrong = np.flatnonzero(counts != np.bincount(plain, minlength=groups))
    if len(wrong):
        first = int(wrong[0])
        raise module.bad(
            f"g_idx puts {counts[first]} inputs in group {first}; groups have {group}",
            "Is group_size of the quantisation's configuration right?",
        )
    return np.argsort(index, kind="stable")
