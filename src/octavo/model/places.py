"""Where a canonical tensor lies in a checkpoint's files.

Owns: `Part`, which lets one tensor of a file serve several canonical ones; the way from canonical
names to files' names, shapes and rows.
Does not know: file formats, what a weight's bytes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import RawWeight

Rows = Sequence[int] | slice


@dataclass(frozen=True, slots=True)
class Part:
    """A canonical matrix (and its bias) as some outputs of a module that holds several.

    `rows(layer)` gives for each canonical part of the module, by its name ("q", "gate" ...), the
    module's rows that it consists of, in order.
    """

    module: str
    rows: Callable[[LayerSpec], Mapping[str, Rows]]


@dataclass(frozen=True, slots=True)
class Place:
    """One canonical tensor in the files: `rows` of the tensor `file` (None: all), which is there
    as (inputs, outputs) if `transposed`."""

    file: str
    shape: tuple[int, ...]
    rows: Rows | None = None
    transposed: bool = False


NameMap = Mapping[str, str | Part]


def find_places(
    spec: DecoderSpec,
    shapes: Mapping[str, tuple[int, ...]],
    names: NameMap,
    *,
    suffixes: tuple[str, str] = (".weight", ".bias"),
    transposed: Iterable[str] = (),
) -> dict[str, Place]:
    """The place of each tensor of `shapes`. `transposed` names the parts of a layer ("q" ...)
    whose matrices lie the other way round."""
    result = {}
    flipped = frozenset(transposed)
    for name, shape in shapes.items():
        module, bias = name.removesuffix(".bias"), name.endswith(".bias")
        index, part = None, module
        if module.startswith("layers."):
            _, number, part = module.split(".", 2)
            index, module = int(number), f"layers.{{i}}.{part}"
        target = names[module]
        rows: Rows | None = None
        if isinstance(target, Part):
            assert index is not None
            rows = target.rows(spec.layers[index])[part]
            target = target.module
        file = target.replace("{i}", str(index)) + suffixes[bias]
        result[name] = Place(file, shape, rows, part in flipped and not bias)
    return result


def file_shapes(places: Mapping[str, Place]) -> dict[str, tuple[int, ...]]:
    """The files' names and the shapes that tensors of those names must have."""
    result: dict[str, tuple[int, ...]] = {}
    for place in places.values():
        before = result.get(place.file)
        outputs = place.shape[0]
        if before is not None:
            outputs += before[-1] if place.transposed else before[0]
        rest = place.shape[1:]
        result[place.file] = (*rest, outputs) if place.transposed else (outputs, *rest)
    return result


def take(weight: RawWeight, place: Place) -> RawWeight:
    """The canonical tensor out of the file's, which lies as (outputs, inputs): all of it, or the
    place's rows."""
    if place.rows is None:
        return weight
    if weight.take_rows is None:
        raise ValueError(f"{weight.name}: rows of a {weight.format} weight cannot be taken")
    rows = place.rows
    return weight.take_rows(rows if isinstance(rows, slice) else np.asarray(rows, np.int64))
