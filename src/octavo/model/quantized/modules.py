"""The quantised modules of a checkpoint: which they are, their tensors, their weights.

Owns: the way from the name of a module's matrix ("....q_proj.weight") to what a scheme says of it.
Does not know: schemes' layouts, models, what a matrix is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.model.errors import ModelError
from octavo.model.mapped import MappedFiles
from octavo.model.places import Place, file_shapes
from octavo.model.quantized.scheme import Module, Part, Scheme
from octavo.model.safetensors import DTYPES, Entry, array
from octavo.ops import RawWeight, Runs

_MATRIX = ".weight"


@dataclass(frozen=True, slots=True)
class Matrix:
    """A quantised matrix, as one module of the files has it."""

    scheme: Scheme
    module: Module
    files: MappedFiles

    @property
    def format(self) -> str:
        """`RawWeight.format`, without reading any."""
        return self.scheme.format(self.module)

    def weight(self, name: str) -> RawWeight:
        """The whole matrix (outputs, inputs), called `name`, not read yet."""
        raw = self.scheme.weight(name, self.module)
        tensors = self.module.tensors
        entries = (tensors[suffix] for suffix in sorted(tensors))
        views = (self.files.view(e.path, e.offset, e.size) for e in entries)
        raw.data = Runs((repr(self.scheme).encode(), *views))
        return raw

    def forget(self) -> None:
        """Gives back the memory of the files' pages that it was read from."""
        for entry in self.module.tensors.values():
            self.files.forget(entry.path, entry.offset, entry.size)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensors: their names and shapes. Raises ModelError (codes "bad_quantization",
        "unsupported_dtype") naming the module where it cannot be."""
        result = {}
        for part in self.scheme.parts(self.module):
            name = f"{self.module.name}.{part.suffix}"
            self._check_dtype(name, part)
            result[name] = part.shape
        return result

    def _check_dtype(self, name: str, part: Part) -> None:
        found = self.module.dtype(part.suffix)
        if found and found not in part.dtypes:
            raise ModelError(
                f"{self.module.tensors[part.suffix].path}: tensor {name} is {found}; "
                f"{self.scheme.label} has {' or '.join(part.dtypes)} there",
                "unsupported_dtype",
            )


class QuantizedModules:
    """`entries` are all tensors of a checkpoint. Matrices go by the name that they would have as
    floats."""

    def __init__(self, scheme: Scheme, entries: Mapping[str, Entry]) -> None:
        self.scheme = scheme
        self._files = MappedFiles()
        self._modules: dict[str, dict[str, Entry]] = {}
        for name, entry in entries.items():
            module, _, suffix = name.rpartition(".")
            self._modules.setdefault(module, {})[suffix] = entry

    def matrices(self, places: Mapping[str, Place]) -> dict[str, Matrix]:
        """Those of the places' files that are quantised, by name. One that is missing altogether
        counts as such if its module has other tensors of the scheme."""
        turned = {place.file for place in places.values() if place.transposed}
        result = {}
        for name, shape in file_shapes(places).items():
            module = name.removesuffix(_MATRIX)
            tensors = self._modules.get(module, {})
            if len(shape) == 2 and module != name and tensors and self.scheme.quantizes(tensors):
                # A scheme stores outputs and inputs in its own way, whichever way floats would lie.
                outputs, inputs = reversed(shape) if name in turned else shape
                result[name] = self._matrix(module, outputs, inputs, tensors)
        return result

    def _matrix(
        self, module: str, outputs: int, inputs: int, tensors: Mapping[str, Entry]
    ) -> Matrix:
        def read(suffix: str) -> Any:
            return array(tensors[suffix], self._files)

        return Matrix(self.scheme, Module(module, outputs, inputs, tensors, read), self._files)

    def wanted(
        self, shapes: Mapping[str, tuple[int, ...]], places: Mapping[str, Place]
    ) -> dict[str, tuple[int, ...]]:
        """`shapes` of the places' files, with the tensors of quantised matrices in their stead.
        Raises ModelError as `Matrix.shapes` does."""
        result = dict(shapes)
        for name, matrix in self.matrices(places).items():
            del result[name]
            result.update(matrix.shapes())
        return result

    def needless(self, name: str) -> bool:
        """Whether a tensor that no matrix and no vector of the model needs may be there: one of
        activations, or a bias that old checkpoints store as zeros."""
        module, _, suffix = name.rpartition(".")
        if suffix in self.scheme.unused:
            return True
        found = self._modules.get(module, {})
        if (
            suffix != "bias"
            or not self.scheme.quantizes(found)
            or found[suffix].dtype not in DTYPES
        ):
            return False
        return not np.asarray(array(found[suffix], self._files)).any()
