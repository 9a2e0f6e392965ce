"""Typed reads from a model's configuration, with errors that name the key.

Owns: `Fields`.
Does not know: which keys a family needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.model.errors import ModelError

_REQUIRED: Any = object()
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fields:
    """A configuration as a mapping (config.json, or GGUF metadata in its terms). `origin` names
    the file in errors. null counts as absent, as it does in transformers. `keys` leads from the
    common names of keys to a family's own. `gguf`: it comes from a GGUF file."""

    values: Mapping[str, Any]
    origin: str
    keys: Mapping[str, str] = field(default_factory=dict)
    gguf: bool = False

    def renamed(self, **keys: str) -> Fields:
        """The same, in which common keys are looked up under the family's own names: those of its
        config.json, as GGUF metadata come under the common ones."""
        return self if self.gguf else replace(self, keys=keys)

    def filled(self, **defaults: Any) -> Fields:
        """The same, with values for common keys that are absent."""
        missing = {self.keys.get(k, k): v for k, v in defaults.items() if not self.has(k)}
        return replace(self, values={**self.values, **missing})

    def replaced(self, **values: Any) -> Fields:
        """The same, with other values (None: without) for common keys."""
        own = {self.keys.get(key, key): value for key, value in values.items()}
        return replace(self, values={**self.values, **own})

    def has(self, key: str) -> bool:
        return self.values.get(self.keys.get(key, key)) is not None

    def null(self, key: str) -> bool:
        """Whether it is there as null: for the keys where that is not the same as absent."""
        key = self.keys.get(key, key)
        return key in self.values and self.values[key] is None

    def common(self) -> dict[str, Any]:
        """All values, those of renamed keys under their common names."""
        return {**self.values, **{k: self.values.get(own) for k, own in self.keys.items()}}

    def size(self, key: str, default: int | None = _REQUIRED, limit: int = _LARGEST) -> int:
        """A positive integer. `limit` bounds what is built of that size before the tensors are
        looked at: a file may say anything."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
            raise self.bad(key, value, f"a positive integer, at most {limit}")
        return value

    def count(self, key: str, default: int = _REQUIRED) -> int:
        """An integer from 0 on."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise self.bad(key, value, f"an integer from 0 to {_LARGEST}")
        return value

    def optional_size(self, key: str, limit: int = _LARGEST) -> int | None:
        return self.size(key, limit=limit) if self.has(key) else None

    def number(self, key: str, default: float = _REQUIRED) -> float:
        """A positive number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.bad(key, value, "a positive number")
        return float(value)

    def optional_number(self, key: str, default: float) -> float:
        """A positive number; 0 where it is null. `default` 0: also where it is absent."""
        if self.null(key) or (not default and not self.has(key)):
            return 0.0
        return self.number(key, default)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, value, "true or false")
        return value

    def choices(self, key: str, options: Sequence[Any], count: int) -> tuple[Any, ...] | None:
        """One of `options` for each of `count` layers; None where the key is absent."""
        if not self.has(key):
            return None
        value = self._get(key, None)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(type(item) in map(type, options) and item in options for item in value)
        ):
            wanted = " or ".join(map(repr, options))
            raise self.bad(key, value, f"a list of {count} entries, each {wanted}")
        return tuple(value)

    def text(self, key: str, default: str = _REQUIRED) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.bad(key, value, "a string")
        return value

    def bad(self, key: str, value: object, wanted: str) -> ModelError:
        key = self.keys.get(key, key)
        return ModelError(f"{self.origin}: {key} is {value!r:.60}, not {wanted}", "bad_config")

    def unsupported(self, key: str, hint: str = "") -> ModelError:
        """For a value that is understood, but asks for what is not computed."""
        key = self.keys.get(key, key)
        value = self.values.get(key)
        return ModelError(
            f"{self.origin}: {key} is {value!r:.60}, which is not supported",
            "unsupported_feature",
            hint,
        )

    def _get(self, key: str, default: Any) -> Any:
        key = self.keys.get(key, key)
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelError(f"{self.origin}: {key} is missing", "bad_config")
        return default
