"""AWQ in its "gemm" layout: codes and zeros of eight outputs in a word, in an order of its own.

Owns: the layout.
Does not know: configurations (settings), files, kernels.

  qweight (inputs, outputs / 8) int32: codes of 4 bits
  qzeros  (groups, outputs / 8) int32
  scales  (groups, outputs)
From its lowest bits on a word holds outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight. A weight is
(code - zero) * scale. Format: github.com/casper-hansen/AutoAWQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.model.quantized.scheme import FLOATS, Module, Part, groups_of, require_multiple
from octavo.model.quantized.unpack import codes_of
from octavo.model.safetensors import Entry
from octavo.ops import GroupedCodes, RawWeight
from octavo.ops.grouped_codes import raw_weight
from octavo.ops.packing import codes_format

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of its eight outputs lies."""


@dataclass(frozen=True, slots=True)
class Awq:
    """`group`: inputs of a group; 0: all of them."""

    group: int

    unused = ()

    @property
    def label(self) -> str:
        return f"awq, 4 bits, groups of {self.group or 'all'}, with zeros"

    def quantizes(self, tensors: Mapping[str, Entry]) -> bool:
        return "qweight" in tensors or "weight" not in tensors

    def parts(self, module: Module) -> list[Part]:
        outputs, inputs = module.outputs, module.inputs
        require_multiple(module, "outputs", outputs, 8, "8 codes of 4 bits share a word")
        groups = groups_of(inputs, self.group or inputs)
        return [
            Part("qweight", (inputs, outputs // 8), ("I32",)),
            Part("qzeros", (groups, outputs // 8), ("I32",)),
            Part("scales", (groups, outputs), FLOATS),
        ]

    def format(self, module: Module) -> str:
        half = module.dtype("scales") == "F16"
        return codes_format(4, None, self.group or module.inputs, module.inputs, half)

    def weight(self, name: str, module: Module) -> RawWeight:
        def rows(begin: int, end: int) -> tuple[Any, Any, Any]:
            codes = _outputs(module.read("qweight"), begin, end)
            zeros = _outputs(module.read("qzeros"), begin, end)
            scales = module.read("scales")[:, begin:end].T.astype(np.float32)
            return codes, scales, zeros

        group = self.group or module.inputs
        codes = GroupedCodes(4, module.inputs, group, None, rows, lambda: None)
        return raw_weight(name, module.outputs, self.format(module), codes)


def _outputs(words: Any, begin: int, end: int) -> Any:
    """Codes (outputs, rows of words) of some outputs."""
    first, last = begin // 8, -(-end // 8)
    mixed = codes_of(words[:, first:last], 4)
    sorted_ = mixed.reshape(len(mixed), last - first, 8)[:, :, PLACES].reshape(len(mixed), -1)
    return np.ascontiguousarray(sorted_[:, begin - first * 8 : end - first * 8].T)
