"""Weights as codes of 4 or 8 bits, multiplied by integer dot products.

Owns: which formats are kept as codes, packing them, and rounding float weights to codes.
Does not know: files, models, how a product is computed (csrc/kernels/linear_codes.hpp).

Weights that have `GroupedCodes` (GPTQ, AWQ, compressed-tensors) are kept with their scales and
zeros, without loss; a group of more than 32 inputs has its scale repeated, so that all group sizes
run the same loop. Where inputs are grouped out of their order, columns of codes are packed by
group, and a product gathers its activations in that order.

GGUF's Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K and IQ4_NL are repacked as they are: every
weight keeps its float32 value to the last bit. Codes of five and six bits are held in eight, and
the K types' scales, products of a float16 and a whole number, in float32; all other scales stay
float16. The inexact part is the activations, which a product rounds to int8: in groups of 16, whose
scales are whole multiples (1 to 127) of one for 32, or of 64 for "int8".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops import GroupedCodes, RawWeight
from octavo.ops.grouped_codes import spread
from octavo.ops.packing import CODE_FORMATS, code_format

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

GROUP = 32
"""Inputs that share a scale and a minimum in "int4"."""

_PIECE = 1 << 18
"""Weights that are worked on at once: they stay in the processor's cache."""


@dataclass(slots=True)
class CodeWeight:
    """Matrices stacked along their outputs, each of one format; `bias` (outputs,) or None."""

    parts: list[Any]
    bias: Floats | None

    native: Any

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in self.parts)

    @property
    def outputs(self) -> int:
        return sum(int(part.outputs) for part in self.parts)

    def linear(self, x: Floats, pool: Any) -> Floats:
        """(rows, inputs) -> (rows, outputs), bias included."""
        out: Floats = self.native.linear_codes(np.ascontiguousarray(x), self.parts, self.bias, pool)
        return out

    def embed(self, ids: NDArray[np.int64], pool: Any) -> Floats:
        """The rows `ids` as float32 (ids, inputs). Raises ValueError for a table of several
        formats and for ids outside it."""
        out: Floats = self.table().rows(ids, pool)
        return out

    def table(self) -> Any:
        """The one matrix. Raises ValueError where there are several formats."""
        if len(self.parts) != 1:
            raise ValueError("a table of embeddings must have one format")
        return self.parts[0]


def pack(
    native: Any,
    weights: Sequence[RawWeight],
    bias: Sequence[RawWeight] = (),
    quantize: str = "none",
) -> CodeWeight:
    """`weights`, all of formats that have a `packing.code_format`, stacked along their outputs;
    neighbours of one format become one matrix. May run in several threads at once.

    Raises ValueError where shapes do not fit together or do not suit the format.
    """
    if len({weight.shape[1] for weight in weights}) != 1:
        shapes = ", ".join(f"{weight.name} {weight.shape}" for weight in weights)
        raise ValueError(f"weights to be fused differ in their inputs: {shapes}")
    runs: list[tuple[str, Any, list[RawWeight]]] = []
    for weight in weights:
        name = code_format(weight.format, quantize=quantize)
        if name is None:
            raise ValueError(f"{weight.name}: {weight.format} weights are not kept as codes")
        order = None if weight.codes is None else weight.codes.order()
        if runs and runs[-1][0] == name and _same(runs[-1][1], order):
            runs[-1][2].append(weight)
        else:
            runs.append((name, order, [weight]))
    values = [np.asarray(b.dequantize(), np.float32) for b in bias]
    joined = np.concatenate(values) if values else None
    return CodeWeight([_matrix(native, *run) for run in runs], joined, native)


def _same(a: Any, b: Any) -> bool:
    return (a is None) == (b is None) and (a is None or np.array_equal(a, b))


def _matrix(native: Any, name: str, order: Any, weights: list[RawWeight]) -> Any:
    outputs, inputs = sum(w.shape[0] for w in weights), weights[0].shape[1]
    matrix = native.CodeMatrix(name, outputs, inputs)
    if order is not None:
        matrix.set_order(np.ascontiguousarray(order, np.int64))
    step = max(1, _PIECE // inputs)
    first = 0
    for weight in weights:
        if weight.codes is not None:
            for begin in range(0, weight.shape[0], step):
                end = min(begin + step, weight.shape[0])
                matrix.put_codes(first + begin, *_grouped(weight.codes, name, begin, end))
        elif "gguf" in CODE_FORMATS[name].origins:
            matrix.put_source(first, np.ascontiguousarray(weight.data, np.uint8))
        else:
            rounded = quantize_int8 if name == "int8" else quantize_int4
            for begin in range(0, weight.shape[0], step):
                rows = _floats(weight.format, weight.data[begin : begin + step])
                matrix.put_codes(first + begin, *rounded(rows))
        first += weight.shape[0]
    return matrix


def _grouped(codes: GroupedCodes, name: str, begin: int, end: int) -> tuple[Any, ...]:
    """Codes, scales and zeros of some rows as `CodeMatrix.put_codes` takes them: zeros negated, as
    what is added to a code."""
    values, scales, zeros = codes.rows(begin, end)
    values = np.ascontiguousarray(values)
    if CODE_FORMATS[name].group == 0:
        return values, np.ascontiguousarray(scales, np.float32)
    wide = spread(np.asarray(scales, np.float32), codes)
    if codes.zero is not None:
        return values, wide
    return values, wide, spread(-np.asarray(zeros, np.float32), codes)


def _floats(weight_format: str, rows: Any) -> Floats:
    if weight_format == "bf16":
        wide: Floats = np.left_shift(rows, 16, dtype=np.uint32).view(np.float32)
        return wide
    return np.ascontiguousarray(rows, np.float32)


def quantize_int8(rows: Floats) -> tuple[Bytes, Floats]:
    """(outputs, inputs) -> codes, 128 standing for 0, and scales (outputs, 1): a channel's largest
    magnitude becomes 127. A weight is (code - 128) * scale. Raises ValueError for values that are
    not finite."""
    largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))[:, None]
    if not np.isfinite(largest).all():
        raise ValueError("weights that are not finite cannot be quantised")
    scales = largest / np.float32(127)
    codes = rows * _inverse(scales)
    np.rint(codes, out=codes)
    return (codes + np.float32(128)).astype(np.uint8), scales


def quantize_int4(rows: Floats) -> tuple[Bytes, Floats, Floats]:
    """(outputs, inputs) -> codes below 16, scales and minima (outputs, groups of 32; the last may
    be short). A weight is code * scale + minimum. Scales and minima are float16 values. Raises
    ValueError for values that are not finite or beyond float16."""
    outputs, inputs = rows.shape
    groups = -(-inputs // GROUP)
    if inputs % GROUP:  # the last value again: it moves no bound
        rows = np.pad(rows, ((0, 0), (0, groups * GROUP - inputs)), mode="edge")
    blocks = rows.reshape(outputs, groups, GROUP)
    low = blocks.min(axis=2)
    with np.errstate(over="ignore", invalid="ignore"):
        minima = low.astype(np.float16).astype(np.float32)
        scales = ((blocks.max(axis=2) - low) / np.float32(15)).astype(np.float16)
    scales = scales.astype(np.float32)
    if not (np.isfinite(minima).all() and np.isfinite(scales).all()):
        raise ValueError("weights that are not finite, or beyond float16, cannot be quantised")
    codes = (blocks - minima[..., None]) * _inverse(scales)[..., None]
    np.rint(codes, out=codes)
    np.clip(codes, 0, 15, out=codes)
    flat = codes.astype(np.uint8).reshape(outputs, -1)[:, :inputs]
    return np.ascontiguousarray(flat), scales, minima


def _inverse(scales: Floats) -> Floats:
    """1 / scales, and 0 where that is not finite: all values there round to 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    return np.where(np.isfinite(inverse), inverse, np.float32(0))
