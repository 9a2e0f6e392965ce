"""compressed-tensors' integers: one a byte (int-quantized), or packed in words (pack-quantized).

Owns: both layouts.
Does not know: configurations (settings), files, kernels.

  int-quantized   weight (outputs, inputs) int8
                  weight_scale and weight_zero_point: (1,), (outputs, 1) or (outputs, groups)
  pack-quantized  weight_packed (outputs, inputs / n) int32, weight_shape (2,), weight_scale
                  weight_zero_point packed along the outputs (outputs / n, groups) int32, or int8
                  weight_g_idx (inputs,), optional: the group of each input
A weight is (integer - zero point) * scale. Packed integers have half the range added, zero points
too. Format: github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from octavo.model.quantized.scheme import FLOATS, Module, Part, groups_of
from octavo.model.quantized.unpack import codes_of, group_order
from octavo.model.safetensors import Entry
from octavo.ops import GroupedCodes, RawWeight
from octavo.ops.grouped_codes import raw_weight
from octavo.ops.packing import codes_format

SINGLE = ((1,), (), (1, 1))
"""Shapes that one value for the whole matrix is stored in."""

UNUSED = ("input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale", "q_scale")
"""Of activations and cached keys and values, which are rounded in a way of our own."""


@dataclass(frozen=True, slots=True)
class Integers:
    """`packed`: in words. `group`: inputs of a group; 0: all of them."""

    packed: bool
    bits: int
    group: int
    symmetric: bool

    unused = UNUSED

    @property
    def label(self) -> str:
        layout = "pack-quantized" if self.packed else "int-quantized"
        symmetry = "symmetric" if self.symmetric else "with zeros"
        groups = self.group or "all"
        return f"compressed-tensors {layout}, {self.bits} bits, groups of {groups}, {symmetry}"

    def quantizes(self, tensors: Mapping[str, Entry]) -> bool:
        if self.packed:
            return "weight_packed" in tensors or "weight" not in tensors
        return "weight" not in tensors or tensors["weight"].dtype not in FLOATS

    def parts(self, module: Module) -> list[Part]:
        outputs, inputs, found = module.outputs, module.inputs, module.tensors
        scale = self._scale_shape(module)
        if not self.packed:
            parts = [
                Part("weight", (outputs, inputs), ("I8",)),
                Part("weight_scale", scale, FLOATS),
            ]
            if not self.symmetric or "weight_zero_point" in found:
                parts.append(Part("weight_zero_point", scale, ("I8",)))
            return parts
        count = 32 // self.bits
        parts = [
            Part("weight_packed", (outputs, -(-inputs // count)), ("I32",)),
            Part("weight_scale", scale, FLOATS),
            Part("weight_shape", (2,), ("I32", "I64")),
        ]
        if not self.symmetric or "weight_zero_point" in found:
            words = (-(-outputs // count), *scale[1:])
            whole = module.dtype("weight_zero_point") == "I8"
            parts.append(Part("weight_zero_point", scale if whole else words, ("I32", "I8")))
        if "weight_g_idx" in found:
            parts.append(Part("weight_g_idx", (inputs,), ("I32", "I64")))
        return parts

    def _scale_shape(self, module: Module) -> tuple[int, ...]:
        found = module.tensors.get("weight_scale")
        if self.group == 0 and found is not None and found.shape in SINGLE:
            return found.shape
        return (module.outputs, groups_of(module.inputs, self.group or module.inputs))

    @property
    def _zero(self) -> int | None:
        return 1 << (self.bits - 1) if self.symmetric else None

    def format(self, module: Module) -> str:
        group, half = self.group or module.inputs, module.dtype("weight_scale") == "F16"
        return codes_format(self.bits, self._zero, group, module.inputs, half)

    def weight(self, name: str, module: Module) -> RawWeight:
        group = self.group or module.inputs
        groups = groups_of(module.inputs, group)

        @cache
        def order() -> Any:
            if "weight_g_idx" not in module.tensors:
                return None
            return group_order(module, module.read("weight_g_idx"), group)

        @cache
        def scales() -> Any:
            found = np.asarray(module.read("weight_scale"))
            if self.packed:
                self._check_shape(module)
            if found.shape in SINGLE:
                found = found.reshape(1, 1)
            return np.broadcast_to(found, (module.outputs, groups))

        def rows(begin: int, end: int) -> tuple[Any, Any, Any]:
            some = scales()[begin:end].astype(np.float32)
            if self.packed:
                codes = codes_of(module.read("weight_packed")[begin:end], self.bits)
                codes = codes[:, : module.inputs]
            else:
                codes = module.read("weight")[begin:end].view(np.uint8) ^ np.uint8(128)
            return codes, some, self._zeros(module, begin, end, some.shape)

        codes = GroupedCodes(self.bits, module.inputs, group, self._zero, rows, order)
        return raw_weight(name, module.outputs, self.format(module), codes)

    def _check_shape(self, module: Module) -> None:
        told = tuple(int(n) for n in module.read("weight_shape"))
        if told != (module.outputs, module.inputs):
            raise module.bad(f"weight_shape says {told}")

    def _zeros(self, module: Module, begin: int, end: int, shape: tuple[int, ...]) -> Any:
        """(outputs, groups), with half the range added; None where all are that."""
        if "weight_zero_point" not in module.tensors:
            return None
        middle = 1 << (self.bits - 1)
        stored = np.asarray(module.read("weight_zero_point"))
        if stored.dtype == np.int8:
            if stored.shape in SINGLE:
                stored = np.broadcast_to(stored.reshape(1, 1), (module.outputs, shape[1]))
            zeros = (stored[begin:end].astype(np.int16) + middle).astype(np.uint8)
        else:
            count = 32 // self.bits
            first, last = begin // count, -(-end // count)
            codes = codes_of(stored[first:last].T, self.bits).T
            zeros = codes[begin - first * count : end - first * count]
        if not self.symmetric:
            return zeros
        if (zeros != middle).any():
            raise module.bad("it is called symmetric, but weight_zero_point is not 0")
        return None
