"""Floats of 8 bits (e4m3) with scales: of the whole matrix, of each output, of groups or of blocks.

Owns: the layout, what the 256 codes stand for, and the key that says how large blocks are.
Does not know: files, kernels.

  weight (outputs, inputs) float8 e4m3
  weight_scale or weight_scale_inv: (1,), (outputs, 1), (outputs, groups), or one for each block
A weight is its value times the scale, under either name. Codes have no scale that is one number for
32 inputs of an output in every such layout, so kernels take these weights as floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.model.families.fields import Fields
from octavo.model.quantized.integers import SINGLE, UNUSED
from octavo.model.quantized.scheme import FLOATS, Module, Part, groups_of
from octavo.model.safetensors import Entry
from octavo.ops import RawWeight


def _values() -> Any:
    """Sign, four bits of exponent (bias 7), three of mantissa; no infinities, 0x7f and 0xff NaN."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * np.exp2(exponent - 10.0))
    size[codes & 127 == 127] = np.nan
    return np.where(codes < 128, size, -size).astype(np.float32)


VALUES = _values()


@dataclass(frozen=True, slots=True)
class Fp8:
    """`method` as the configuration calls it. `block`: (outputs, inputs) that share a scale, 0 for
    all of a side; None: of the whole matrix or of each output, as the files have it."""

    method: str
    block: tuple[int, int] | None

    unused = UNUSED

    @property
    def label(self) -> str:
        if self.block is None:
            return f"{self.method} e4m3"
        return f"{self.method} e4m3, blocks of {self.block[0]} x {self.block[1]}"

    def quantizes(self, tensors: Mapping[str, Entry]) -> bool:
        return "weight" not in tensors or tensors["weight"].dtype not in FLOATS

    def parts(self, module: Module) -> list[Part]:
        suffix = _scale(module)
        return [
            Part("weight", (module.outputs, module.inputs), ("F8_E4M3",)),
            Part(suffix, self._scale_shape(module, suffix), FLOATS),
        ]

    def _scale_shape(self, module: Module, suffix: str) -> tuple[int, ...]:
        if self.block is not None:
            high, wide = self.block
            return (groups_of(module.outputs, high), groups_of(module.inputs, wide))
        found = module.tensors.get(suffix)
        each = ((module.outputs, 1), (module.outputs,))
        if found is not None and found.shape in (*SINGLE, *each):
            return found.shape
        return (1,)

    def format(self, module: Module) -> str:
        return "fp8"

    def weight(self, name: str, module: Module) -> RawWeight:
        return self._rows(name, module, np.arange(module.outputs))

    def _rows(self, name: str, module: Module, index: Any) -> RawWeight:
        """The outputs `index`."""

        def rows(begin: int, end: int) -> Any:
            chosen = index[begin:end]
            out = VALUES[module.read("weight")[chosen]]
            scales = np.asarray(module.read(_scale(module)), np.float32)
            if self.block is None:
                column = scales.reshape(-1, 1)
                out *= column if len(column) == 1 else column[chosen]
            else:
                high, wide = self.block
                across = np.arange(module.inputs) // wide
                out *= scales[chosen // high][:, across]
            return out

        return RawWeight(
            name,
            (len(index), module.inputs),
            "fp8",
            None,
            lambda: rows(0, len(index)),
            rows,
            lambda some: self._rows(name, module, index[some]),
        )


def fp8_block(fields: Fields, key: str) -> tuple[int, int]:
    """The block's sides in a configuration. Raises ModelError naming the key."""
    value = fields.values.get(key)
    sides = value if isinstance(value, list) else []
    if len(sides) != 2 or not all(type(n) is int and n > 0 for n in sides):
        raise fields.bad(key, value, "two positive integers")
    return (sides[0], sides[1])


def _scale(module: Module) -> str:
    return "weight_scale_inv" if "weight_scale_inv" in module.tensors else "weight_scale"
