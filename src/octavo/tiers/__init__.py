"""Tiers: where blocks of the KV cache are kept outside the pool.

Owns: the protocol of a tier, and its counters.
Does not know: sequences, pools, or a backend's layout: a block is bytes.

`host` keeps blocks in memory, for pools on a device; `disk` in files, so that they survive a
restart; `executor` moves bytes between a tier and an executor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

Key = tuple[int, bytes]
"""KV group and chain hash."""


@dataclass(slots=True)
class TierStats:
    """`stored` and `errors` are counted since the start; `bytes` are kept now."""

    stored: int = 0
    errors: int = 0
    bytes: int = 0
    active: bool = True


class BlockTier(Protocol):
    """All calls come from the engine's thread, and none blocks (`wait` and `close` aside)."""

    @property
    def stats(self) -> TierStats: ...

    @property
    def active(self) -> bool:
        """False: nothing is stored any more, and every load is a miss."""
        ...

    @property
    def busy(self) -> bool:
        """Blocks were taken and are not kept yet."""
        ...

    def contains(self, group: int, content: bytes) -> bool: ...

    def room(self) -> int:
        """How many blocks it takes now."""
        ...

    def store(self, group: int, content: bytes, data: bytes) -> None:
        """Keep a block, or drop it."""
        ...

    def load(self, number: int, group: int, content: bytes) -> None:
        """Begin to read a block; it arrives once under `number`, whatever happens."""
        ...

    def arrived(self) -> list[tuple[int, bytes | None]]:
        """Loads that are done since the last call: their bytes, or None for a miss."""
        ...

    def wait(self, seconds: float) -> None:
        """Until something has arrived, but no longer than this."""
        ...

    def clear(self) -> None:
        """Forget all blocks."""
        ...

    def close(self, flush: float = 0.0) -> None:
        """Stop; what was taken is written first, if that takes at most `flush` seconds."""
        ...
