"""GPTQ: codes packed along the inputs, zeros along the outputs, groups that may be out of order.

Owns: the layout, and both conventions of stored zeros.
Does not know: configurations (settings), files, kernels.

  qweight (inputs / n, outputs) int32: n codes of adjacent inputs in a word, the first lowest
  qzeros  (groups, outputs / n) int32: the same along the outputs
  scales  (groups, outputs)
  g_idx   (inputs,) int32, optional: the group of each input
A weight is (code - zero) * scale. Version 1 ("gptq") stores zero - 1, wrapped to the bits of a
code; version 2 ("gptq_v2") the zero itself. A symmetric checkpoint's zeros all are half the range.
Format: github.com/AutoGPTQ/AutoGPTQ, github.com/ModelCloud/GPTQModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from octavo.model.quantized.scheme import FLOATS, Module, Part, groups_of, require_multiple
from octavo.model.quantized.unpack import codes_of, group_order
from octavo.model.safetensors import Entry
from octavo.ops import GroupedCodes, RawWeight
from octavo.ops.grouped_codes import raw_weight
from octavo.ops.packing import codes_format


@dataclass(frozen=True, slots=True)
class Gptq:
    """`group`: inputs of a group; 0: all of them."""

    bits: int
    group: int
    symmetric: bool
    version: int = 1

    unused = ()

    @property
    def label(self) -> str:
        symmetry = "symmetric" if self.symmetric else "with zeros"
        return f"gptq, {self.bits} bits, groups of {self.group or 'all'}, {symmetry}"

    def quantizes(self, tensors: Mapping[str, Entry]) -> bool:
        return "qweight" in tensors or "weight" not in tensors

    def parts(self, module: Module) -> list[Part]:
        outputs, inputs, count = module.outputs, module.inputs, 32 // self.bits
        why = f"{count} codes of {self.bits} bits share a word"
        require_multiple(module, "inputs", inputs, count, why)
        require_multiple(module, "outputs", outputs, count, why)
        groups = groups_of(inputs, self._group(module))
        parts = [
            Part("qweight", (inputs // count, outputs), ("I32",)),
            Part("qzeros", (groups, outputs // count), ("I32",)),
            Part("scales", (groups, outputs), FLOATS),
        ]
        if "g_idx" in module.tensors:
            parts.append(Part("g_idx", (inputs,), ("I32", "I64")))
        return parts

    def _group(self, module: Module) -> int:
        return self.group or module.inputs

    @property
    def _zero(self) -> int | None:
        return 1 << (self.bits - 1) if self.symmetric else None

    def format(self, module: Module) -> str:
        half = module.dtype("scales") == "F16"
        return codes_format(self.bits, self._zero, self._group(module), module.inputs, half)

    def weight(self, name: str, module: Module) -> RawWeight:
        group = self._group(module)

        @cache
        def order() -> Any:
            if "g_idx" not in module.tensors:
                return None
            return group_order(module, module.read("g_idx"), group)

        def rows(begin: int, end: int) -> tuple[Any, Any, Any]:
            codes = codes_of(module.read("qweight")[:, begin:end].T, self.bits)
            zeros = self._zeros(module, begin, end)
            scales = module.read("scales")[:, begin:end].T.astype(np.float32)
            return codes, scales, zeros

        codes = GroupedCodes(self.bits, module.inputs, group, self._zero, rows, order)
        return raw_weight(name, module.outputs, self.format(module), codes)

    def _zeros(self, module: Module, begin: int, end: int) -> Any:
        """(outputs, groups); None in a symmetric checkpoint, where they are looked at all the same:
        what they must be tells a wrong version."""
        count = 32 // self.bits
        first, last = begin // count, -(-end // count)
        stored = codes_of(module.read("qzeros")[:, first:last], self.bits)
        zeros = stored[:, begin - first * count : end - first * count].T
        if self.version == 1:
            zeros = (zeros + np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        if not self.symmetric:
            return zeros
        wrong = zeros[zeros != self._zero]
        if wrong.size:
            spelled = "gptq" if self.version == 1 else "gptq_v2"
            raise module.bad(
                f"a symmetric checkpoint's zeros are {self._zero}, but qzeros has {wrong[0]} "
                f'(read as checkpoint_format "{spelled}")',
                "Correct checkpoint_format (gptq, gptq_v2) or sym in the quantisation's "
                "configuration.",
            )
        return None
