"""What a scheme of quantised safetensors says of a module: the tensors it has, and its weight.

Owns: `Scheme`, and the module as a scheme sees it.
Does not know: any one scheme, configurations, how files are mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.model.errors import ModelError
from octavo.model.safetensors import Entry
from octavo.ops import RawWeight

FLOATS = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a checkpoint: its name, its matrix (outputs, inputs), and its tensors by the last
    part of their names ("qweight"). `read(suffix)` maps one as an array (`safetensors.array`)."""

    name: str
    outputs: int
    inputs: int
    tensors: Mapping[str, Entry]
    read: Callable[[str], Any]

    def dtype(self, suffix: str) -> str:
        """Of a tensor that may be missing."""
        entry = self.tensors.get(suffix)
        return "" if entry is None else entry.dtype

    def bad(self, what: str, hint: str = "") -> ModelError:
        shape = f"({self.outputs}, {self.inputs})"
        return ModelError(f"{self.name} {shape}: {what}", "bad_quantization", hint)


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor that a quantised module has: `dtypes` as safetensors spell them."""

    suffix: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


class Scheme(Protocol):
    """One way of storing quantised matrices, with one checkpoint's settings."""

    @property
    def label(self) -> str:
        """Its name and settings, in a few words."""
        ...

    @property
    def unused(self) -> Collection[str]:
        """Last parts of the names of tensors that may be there and are not needed."""
        ...

    def quantizes(self, tensors: Mapping[str, Entry]) -> bool:
        """Whether a module with these tensors is quantised. What is not is stored as floats."""
        ...

    def parts(self, module: Module) -> list[Part]:
        """The tensors it must have, and those it has of what it may have. Raises ModelError where
        its shape does not suit the scheme."""
        ...

    def format(self, module: Module) -> str:
        """`RawWeight.format` of its weight, without reading any."""
        ...

    def weight(self, name: str, module: Module) -> RawWeight:
        """Its weight, called `name`, not read yet. Reading it raises ModelError where the tensors
        hold what cannot be."""
        ...


def groups_of(inputs: int, group: int) -> int:
    return -(-inputs // group)


def require_multiple(module: Module, side: str, count: int, unit: int, why: str) -> None:
    if count % unit:
        raise module.bad(f"{count} {side} are not a multiple of {unit}: {why}")
