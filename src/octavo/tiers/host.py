"""The host tier: blocks of a device's pool in the host's memory.

Owns: a bounded table of blocks, the least recently used of which is dropped.
Does not know: devices. What was stored is read back as it was.
"""

from __future__ import annotations

from collections import OrderedDict

from octavo.tiers import Key, TierStats

BURST = 16
"""Blocks taken in one step, so that copying from the device does not hold it up for long."""


class HostTier:
    """Implements `octavo.tiers.BlockTier` with at most `size` bytes."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"the host tier has {size} bytes; it needs at least 1")
        self.stats = TierStats()
        self._size = size
        self._blocks: OrderedDict[Key, bytes] = OrderedDict()
        self._arrived: list[tuple[int, bytes | None]] = []

    @property
    def active(self) -> bool:
        return True

    @property
    def busy(self) -> bool:
        return False

    def contains(self, group: int, content: bytes) -> bool:
        return (group, content) in self._blocks

    def room(self) -> int:
        return BURST

    def store(self, group: int, content: bytes, data: bytes) -> None:
        if len(data) > self._size or (group, content) in self._blocks:
            return
        while self.stats.bytes + len(data) > self._size:
            _, dropped = self._blocks.popitem(last=False)
            self.stats.bytes -= len(dropped)
        self._blocks[group, content] = data
        self.stats.bytes += len(data)
        self.stats.stored += 1

    def load(self, number: int, group: int, content: bytes) -> None:
        data = self._blocks.get((group, content))
        if data is not None:
            self._blocks.move_to_end((group, content))
        self._arrived.append((number, data))

    def arrived(self) -> list[tuple[int, bytes | None]]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self, seconds: float) -> None:
        """Nothing takes time here."""

    def clear(self) -> None:
        self._blocks.clear()
        self.stats.bytes = 0

    def close(self, flush: float = 0.0) -> None:
        self.clear()
