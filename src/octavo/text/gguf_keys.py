"""Typed access to the `tokenizer.ggml.*` keys of a GGUF file's metadata.

Owns: `Keys`, and the errors about missing and misshapen ones.
Does not know: what the values are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.text.errors import TokenizerError


class Keys:
    """Typed access to the `tokenizer.ggml.*` keys."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def optional_text(self, key: str) -> str | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, str) else None

    def optional(self, key: str) -> Any:
        """Whatever the key holds, or None."""
        return self._metadata.get(f"tokenizer.ggml.{key}")

    def text(self, key: str) -> str:
        value = self.optional_text(key)
        if value is None:
            raise TokenizerError(f"the GGUF file has no tokenizer: tokenizer.ggml.{key} is missing")
        return value

    def list_of(self, key: str, size: int | None, default: Any = None) -> list[Any]:
        """A list of `size` items (None: any); if the key is missing, `default` repeated."""
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None and default is not None and size is not None:
            return [default] * size
        if not isinstance(value, list) or (size is not None and len(value) != size):
            found = f"{len(value)} items" if isinstance(value, list) else repr(value)[:40]
            wanted = "a list" if size is None else f"{size} items, one a token"
            raise TokenizerError(f"tokenizer.ggml.{key} must have {wanted}; it has {found}")
        return value

    def id(self, key: str, size: int) -> int | None:
        """A token id, or None if the key is missing or not an id of this vocabulary."""
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, int) and 0 <= value < size else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, bool) else default
