"""Where tensors come from: the checked table of a checkpoint, by canonical name.

Owns: which tensors a spec needs and of which shapes; the one error that lists all that is wrong.
Does not know: file formats (safetensors, gguf_model) or packing (ops).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from octavo.model.errors import ModelError
from octavo.model.info import Pack
from octavo.model.spec import DecoderSpec
from octavo.ops import RawWeight

_LISTED = 12


class Checkpoint:
    """A WeightSource over mapped files. A tensor is made when it is asked for, and nothing of it is
    read until its `dequantize` or `data` is used."""

    def __init__(
        self, tensors: Mapping[str, Callable[[], RawWeight]], forget: Callable[[str], None]
    ) -> None:
        self._tensors = dict(tensors)
        self._forget = forget

    def get(self, name: str) -> RawWeight:
        return self._tensors[name]()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def done(self, name: str) -> None:
        """Gives back the memory of the file's pages that `name` was read from."""
        self._forget(name)

    def close(self) -> None:
        """Forgets the tensors; the maps go when the last array over them does."""
        self._tensors.clear()


def expected_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor that `spec` needs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, norm, width in spec.norms():
        shapes[name] = (width,)
        if norm.bias:
            shapes[f"{name}.bias"] = (width,)
    for matrix in spec.matrices():
        shapes.update(matrix.shapes())
    return shapes


def packs(spec: DecoderSpec, formats: Mapping[str, str]) -> tuple[Pack, ...]:
    """The matrices of `spec` as the decoder packs them; `formats` by canonical name."""
    counts = Counter(
        (
            tuple((formats[name], outputs) for name, outputs in matrix.parts),
            matrix.inputs,
            matrix.exact,
        )
        for matrix in spec.matrices()
    )
    return tuple(
        Pack(parts, inputs, count, exact) for (parts, inputs, exact), count in counts.items()
    )


def check_tensors(
    origin: str,
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    hint: str = "",
) -> None:
    """Raise one ModelError (code "bad_tensors") naming every tensor that is missing, extra or
    misshapen. Both mappings go from the file's names to shapes."""
    missing = [f"{name} {wanted[name]}" for name in wanted if name not in found]
    extra = [f"{name} {found[name]}" for name in found if name not in wanted]
    misshapen = [
        f"{name} {found[name]} instead of {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    problems = [
        f"{len(names)} {what}: {', '.join(names[:_LISTED])}{_more(names)}"
        for what, names in (("missing", missing), ("extra", extra), ("misshapen", misshapen))
        if names
    ]
    if problems:
        raise ModelError(
            f"{origin}: its tensors do not fit its configuration: {'; '.join(problems)}",
            "bad_tensors",
            hint or "Incomplete download, or a config that belongs to other weights?",
        )


def _more(names: list[str]) -> str:
    return f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
