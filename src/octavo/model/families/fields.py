"""Typed reads from a model's configuration, with errors that name the key.

Owns: `Fields`.
Does not know: which keys a family needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.model.errors import ModelError

_REQUIRED: Any = object()
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fields:
    """A configuration as a mapping (config.json, or GGUF metadata in its terms). `origin` names
    the file in errors. null counts as absent, as it does in transformers."""

    values: Mapping[str, Any]
    origin: str

    def size(self, key: str, default: int | None = _REQUIRED, limit: int = _LARGEST) -> int:
        """A positive integer. `limit` bounds what is built of that size before the tensors are
        looked at: a file may say anything."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
            raise self.bad(key, value, f"a positive integer, at most {limit}")
        return value

    def optional_size(self, key: str, limit: int = _LARGEST) -> int | None:
        return None if self.values.get(key) is None else self.size(key, limit=limit)

    def number(self, key: str, default: float = _REQUIRED) -> float:
        """A positive number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.bad(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, value, "true or false")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.bad(key, value, "a string")
        return value

    def bad(self, key: str, value: object, wanted: str) -> ModelError:
        return ModelError(f"{self.origin}: {key} is {value!r:.60}, not {wanted}", "bad_config")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelError(f"{self.origin}: {key} is missing", "bad_config")
        return default
