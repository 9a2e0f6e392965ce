"""Where a canonical tensor lies in a checkpoint's files.

Owns: `Part`, which lets one tensor of a file serve several canonical ones; the way from canonical
names to files' names, shapes and rows.
Does not know: file formats, what a weight's bytes mean.
"""

from __future__ import annotations

from collections import Counter
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
class Stacked:
    """An expert's canonical matrix in a tensor of three dimensions that holds those of all experts:
    (experts, outputs, inputs). `parts` are the matrices ("gate", "up") whose outputs follow one
    another for each expert; `suffix` ends the file's name."""

    module: str
    parts: tuple[str, ...]
    suffix: str = ".weight"


@dataclass(frozen=True, slots=True)
class Place:
    """One canonical tensor in the files: `rows` of the tensor `file` (None: all), which is there
    as (inputs, outputs) if `transposed`, or as (`stack`, outputs, inputs) if that is not 0: then
    the rows are counted through."""

    file: str
    shape: tuple[int, ...]
    rows: Rows | None = None
    transposed: bool = False
    stack: int = 0


NameMap = Mapping[str, str | Part | Stacked]


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
        layer, expert, part = _numbers(module)
        target = names[module if layer is None else _template(part, expert)]
        if isinstance(target, Stacked):
            assert layer is not None and expert is not None
            experts = spec.layers[layer].experts
            assert experts is not None
            at = name.removesuffix(part)
            sizes = [shapes[at + other][0] for other in target.parts]
            which = target.parts.index(part)
            first = expert * sum(sizes) + sum(sizes[:which])
            rows: Rows | None = slice(first, first + sizes[which])
            file = target.module.replace("{i}", str(layer)) + target.suffix
            result[name] = Place(file, shape, rows, stack=experts.routing.count)
            continue
        rows = None
        if isinstance(target, Part):
            assert layer is not None
            rows = target.rows(spec.layers[layer])[part]
            target = target.module
        file = target.replace("{i}", str(layer)).replace("{e}", str(expert)) + suffixes[bias]
        result[name] = Place(file, shape, rows, part in flipped and not bias)
    return result


def _numbers(module: str) -> tuple[int | None, int | None, str]:
    """The layer and the expert of a canonical module, and what it is within them."""
    if not module.startswith("layers."):
        return None, None, module
    _, layer, part = module.split(".", 2)
    if not part.startswith("experts."):
        return int(layer), None, part
    _, expert, part = part.split(".", 2)
    return int(layer), int(expert), part


def _template(part: str, expert: int | None) -> str:
    return f"layers.{{i}}.{part}" if expert is None else f"layers.{{i}}.experts.{{e}}.{part}"


def file_shapes(places: Mapping[str, Place]) -> dict[str, tuple[int, ...]]:
    """The files' names and the shapes that tensors of those names must have."""
    outputs: Counter[str] = Counter()
    for place in places.values():
        outputs[place.file] += place.shape[0]
    result: dict[str, tuple[int, ...]] = {}
    for place in places.values():
        count, rest = outputs[place.file], place.shape[1:]
        if place.stack:
            result[place.file] = (place.stack, count // place.stack, *rest)
        else:
            result[place.file] = (*rest, count) if place.transposed else (count, *rest)
    return result


def flat_shape(place: Place, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The file's `shape` as rows that `take` can count: a stack of matrices is one high matrix."""
    return (shape[0] * shape[1], *shape[2:]) if place.stack else shape


def span(place: Place, shape: tuple[int, ...], size: int) -> tuple[int, int]:
    """Where a tensor of `size` bytes has what belongs to `place`: first byte and length. The whole,
    unless the place is one of a stack."""
    if not place.stack or not isinstance(place.rows, slice):
        return 0, size
    row = size // (shape[0] * shape[1])
    return place.rows.start * row, (place.rows.stop - place.rows.start) * row


def take(weight: RawWeight, place: Place) -> RawWeight:
    """The canonical tensor out of the file's, which lies as (outputs, inputs): all of it, or the
    place's rows."""
    if place.rows is None:
        return weight
    if weight.take_rows is None:
        raise ValueError(f"{weight.name}: rows of a {weight.format} weight cannot be taken")
    rows = place.rows
    return weight.take_rows(rows if isinstance(rows, slice) else np.asarray(rows, np.int64))
