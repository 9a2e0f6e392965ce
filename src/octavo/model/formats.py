"""The formats of weights that load, and how each is held once it is packed.

Owns: the table that `octavo models` prints; what of a model's matrices is held how.
Does not know: files, or how anything is packed (ops).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from octavo.model.families.family import Family
from octavo.model.gguf import BLOCK_SIZES
from octavo.model.info import ModelInfo, Pack
from octavo.model.safetensors import DTYPES
from octavo.ops.packing import (
    CODE_FORMATS,
    code_bytes,
    code_format,
    loss,
    packed_bytes,
    packed_format,
)
from octavo.ops.select import resolve_backend


@dataclass(frozen=True, slots=True)
class Format:
    """`name` as files spell it; `source` as `RawWeight.format` does; `held`: how the compiled
    backend keeps it by itself; `loses`: what that costs (None: nothing)."""

    container: str
    name: str
    source: str
    held: str
    loses: str | None


@dataclass(frozen=True, slots=True)
class Holding:
    """Weights of one source that are held one way: how many, their bytes, and what is lost."""

    source: str
    held: str
    weights: int
    bytes: int
    loses: str | None


_QUANTISED = {
    "GPTQ": "codes:uint4/f16",
    "AWQ": "codes:uint4/f16",
    "compressed-tensors": "codes:uint4/f32",
    "fp8": "fp8",
}
"""Methods of quantised safetensors (model.quantized), each with the format of its usual settings;
docs/quantised.md has them all."""


def formats() -> list[Format]:
    """Every format that loads, containers in turn."""
    plain = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
    found = [_format("safetensors", name, source) for name, (source, _) in DTYPES.items()]
    found += [_format("safetensors", name, source) for name, source in _QUANTISED.items()]
    for name, _, _ in BLOCK_SIZES.values():
        found.append(_format("gguf", name, plain.get(name, f"gguf:{name}")))
    return found


def of_family(family: Family) -> list[Format]:
    """The formats in which `family`'s models load."""
    return [f for f in formats() if f.container != "gguf" or family.gguf_architecture is not None]


def _format(container: str, name: str, source: str) -> Format:
    code = code_format(source)
    kind = code or packed_format([source], "auto")
    return Format(container, name, source, held_as(kind), loss(source, kind))


def held_as(kind: str) -> str:
    """A packed format in words: `kind` is a name in CODE_FORMATS, "bf16" or "f32"."""
    form = CODE_FORMATS.get(kind)
    if form is None:
        return {"f32": "float32", "bf16": "bfloat16"}.get(kind, kind)
    group = f"groups of {form.group}" if form.group else "a scale for each output"
    return f"codes of {form.bits} bits, {group}"


def holdings(
    model: ModelInfo, backend: str, dtype: str = "auto", quantize: str = "none"
) -> list[Holding]:
    """How `backend` will hold the model, matrices by their format and the way they are kept, then
    vectors. The bytes add up to `sizes.sized(...).weight_bytes`."""
    backend = resolve_backend(backend)
    found: dict[tuple[str, str, str | None], list[int]] = {}
    matrices = 0
    for pack in model.packs:
        for source, held, loses, weights, size in _parts(pack, backend, dtype, quantize):
            counts = found.setdefault((source, held, loses), [0, 0])
            counts[0] += weights * pack.count
            counts[1] += size * pack.count
            matrices += weights * pack.count
    rows = [
        Holding(source, held, weights, size, loses)
        for (source, held, loses), (weights, size) in found.items()
    ]
    rows.sort(key=lambda row: -row.weights)
    vectors = model.parameters - matrices
    return [*rows, Holding("vectors", "float32", vectors, 4 * vectors, None)]


def _parts(
    pack: Pack, backend: str, dtype: str, quantize: str
) -> Iterator[tuple[str, str, str | None, int, int]]:
    """(source, held, loses, weights, bytes) of each run of parts that is packed alike."""
    if backend == "reference":
        for source, outputs in pack.parts:
            weights = outputs * pack.inputs
            yield source, "float32", None, weights, 4 * weights
        return
    coded = backend == "cpu"
    codes = [code_format(s, dtype, quantize) if coded else None for s, _ in pack.parts]
    if len({code is None for code in codes}) > 1:  # codes and floats are packed one by one
        for part in pack.parts:
            yield from _parts(replace(pack, parts=(part,)), backend, dtype, quantize)
        return
    if codes[0] is None:
        yield from _floats(pack, dtype)
        return
    keyed = zip(codes, pack.parts, strict=True)
    for code, run in groupby(keyed, key=lambda entry: entry[0] or ""):
        parts = [part for _, part in run]
        counts = [count for _, count in parts]
        total = code_bytes(code, sum(counts), pack.inputs)
        for (source, count), size in zip(parts, _split(total, counts), strict=True):
            yield source, held_as(code), loss(source, code), count * pack.inputs, size


def _floats(pack: Pack, dtype: str) -> Iterator[tuple[str, str, str | None, int, int]]:
    sources = [source for source, _ in pack.parts]
    kind = packed_format(sources, dtype)
    outputs = [count for _, count in pack.parts]
    total = packed_bytes(sources, sum(outputs), pack.inputs, dtype)
    for (source, count), size in zip(pack.parts, _split(total, outputs), strict=True):
        yield source, held_as(kind), loss(source, kind), count * pack.inputs, size


def _split(total: int, outputs: list[int]) -> list[int]:
    """`total` in proportion to `outputs`; what is left by rounding goes to the first."""
    shares = [total * count // sum(outputs) for count in outputs]
    shares[0] += total - sum(shares)
    return shares
