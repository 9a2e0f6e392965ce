"""The disk tier: blocks in segment files, found again after a restart.

Owns: the index, the threads that write and read, and the switch that turns all of it off.
Does not know: the format of a file (segment), which files there are and which of them goes (shelf),
or which blocks are worth keeping (core.tier).

    engine's thread    store --> queue --> writer thread: appends, then puts the block in the index
                       load  --> queue --> reader thread: reads, checks --> arrived

Neither queue holds more than `BUFFER` bytes of blocks: a store that finds no room is not asked for,
and the reader waits until what it has read was taken. A damaged record is a miss, counted, and not
asked for again. Any other trouble (disk full, directory gone, a read that hangs) turns the tier off
with one line in the log: everything is a miss from then on, and the engine goes on without it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from octavo.tiers import Key, TierStats
from octavo.tiers.segment import RECORD_BYTES, Damaged, Place, read, record
from octavo.tiers.shelf import Shelf

log = logging.getLogger(__name__)

BUFFER = 32 * 1024**2
"""Bytes of blocks on their way out, and as many on their way in."""
STUCK = 30.0
"""Seconds without any progress after which reads count as hanging."""


class DiskTier:
    """Implements `octavo.tiers.BlockTier`. `facts` say whose blocks these are: what differs in them
    has a directory of its own. `block_bytes` is the largest block's size."""

    def __init__(
        self, directory: str | Path, size: int, facts: dict[str, Any], block_bytes: int
    ) -> None:
        """Raises ValueError where `size` does not hold a few blocks."""
        if size < 4 * (block_bytes + RECORD_BYTES):
            raise ValueError(
                f"kv_disk_size is {size} bytes, and a block takes {block_bytes + RECORD_BYTES}; "
                "it must hold four blocks at least"
            )
        self.stats = TierStats()
        self._block_bytes = block_bytes
        self._index: dict[Key, Place] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._files = threading.Lock()
        """Held while files are written or deleted; taken before the other lock, never after it."""
        self._writes: deque[tuple[int, bytes, bytes]] = deque()
        self._queued: dict[Key, int] = {}
        self._queued_bytes = 0
        self._reads: deque[tuple[int, int, bytes]] = deque()
        self._expected: set[int] = set()
        self._arrived: list[tuple[int, bytes | None]] = []
        self._arrived_bytes = 0
        self._progress = time.monotonic()
        self._closing = False
        self._shelf = Shelf(Path(directory), size, facts, block_bytes + RECORD_BYTES)
        self._threads = [
            threading.Thread(target=self._writer, name="kv-disk-writer", daemon=True),
            threading.Thread(target=self._reader, name="kv-disk-reader", daemon=True),
        ]
        try:
            for key, place in self._shelf.open():
                self._index[key] = place
        except OSError as error:
            with self._changed:
                self._off(f"{directory} cannot be used: {error}")
            return
        self.stats.errors += self._shelf.damaged
        self.stats.bytes = self._shelf.held
        for thread in self._threads:
            thread.start()

    # ---- the engine's side ----------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return self.stats.active

    @property
    def busy(self) -> bool:
        return bool(self._queued)

    def __len__(self) -> int:
        """Blocks that can be found."""
        return len(self._index)

    def contains(self, group: int, content: bytes) -> bool:
        return (group, content) in self._index

    def room(self) -> int:
        """At least one where nothing is queued, however large a block is."""
        free = (BUFFER - self._queued_bytes) // self._block_bytes
        return max(free, 0 if self._queued else 1) if self.active else 0

    def store(self, group: int, content: bytes, data: bytes) -> None:
        with self._changed:
            key = (group, content)
            if self.active and not self._closing and key not in self._queued:
                self._writes.append((group, content, data))
                self._queued[key] = len(data)
                self._queued_bytes += len(data)
                self._changed.notify_all()

    def load(self, number: int, group: int, content: bytes) -> None:
        with self._changed:
            if not self._expected:
                self._progress = time.monotonic()
            if not self.active:
                self._arrived.append((number, None))
                return
            self._expected.add(number)
            self._reads.append((number, group, content))
            self._changed.notify_all()

    def arrived(self) -> list[tuple[int, bytes | None]]:
        with self._changed:
            arrived, self._arrived, self._arrived_bytes = self._arrived, [], 0
            now = time.monotonic()
            if arrived:
                self._progress = now
                self._changed.notify_all()
            elif self._expected and now - self._progress > STUCK:
                self._off(f"a read from {self._shelf.directory} takes longer than {STUCK:g} s")
            if not self.active:
                arrived += [(number, None) for number in sorted(self._expected)]
                self._expected.clear()
                self._reads.clear()
            return arrived

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or not self.active, seconds)

    def clear(self) -> None:
        """This model's files are deleted."""
        with self._files, self._changed:
            self._index.clear()
            self._writes.clear()
            self._queued.clear()
            self._queued_bytes = 0
            try:
                self._shelf.forget()
            except OSError as error:
                self._off(f"{self._shelf.directory} cannot be cleared: {error}")
            self.stats.bytes = self._shelf.held

    def close(self, flush: float = 0.0) -> None:
        with self._changed:
            if self.active:
                self._changed.wait_for(lambda: not self._queued or not self.active, flush)
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=5.0)
        with self._changed:
            self._shelf.close()

    def _off(self, reason: str) -> None:
        """Once. The caller holds the lock."""
        if not self.stats.active:
            return
        log.warning("the KV disk tier is off: %s", reason)
        self.stats.active = False
        self.stats.errors += 1
        self._index.clear()
        self._writes.clear()
        self._queued.clear()
        self._queued_bytes = 0
        self._changed.notify_all()

    # ---- out ------------------------------------------------------------------------------------

    def _writer(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._writes or self._closing or not self.active)
                if self._closing or not self.active:
                    return
                group, content, data = self._writes.popleft()
            try:
                with self._files:
                    place = self._append(group, content, data)
            except OSError as error:
                with self._changed:
                    self._off(f"writing to {self._shelf.directory} failed: {error}")
                return
            with self._changed:
                key = (group, content)
                size = self._queued.pop(key, None)
                if size is not None:
                    self._queued_bytes -= size
                    if place is not None:
                        self._index[key] = place
                        self.stats.stored += 1
                self.stats.bytes = self._shelf.held
                self._changed.notify_all()

    def _append(self, group: int, content: bytes, data: bytes) -> Place | None:
        """None where there is no room: other engines use what is there."""
        head = record(group, content, data)
        with self._changed:
            gone = self._shelf.make_room(len(head) + len(data))
            if gone:
                kept = {key: p for key, p in self._index.items() if p.segment not in gone}
                self._index.clear()
                self._index.update(kept)
            if not self._shelf.fits(len(head) + len(data)):
                return None
        return self._shelf.append(head, data)

    # ---- in -------------------------------------------------------------------------------------

    def _reader(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        (self._reads and self._arrived_bytes < BUFFER)
                        or self._closing
                        or not self.active
                    )
                )
                if self._closing or not self.active:
                    return
                number, group, content = self._reads.popleft()
                place = self._index.get((group, content))
            data = None if place is None else self._read(place, group, content)
            with self._changed:
                if number in self._expected:
                    self._expected.remove(number)
                    self._arrived.append((number, data))
                    self._arrived_bytes += len(data or b"")
                    self._changed.notify_all()

    def _read(self, place: Place, group: int, content: bytes) -> bytes | None:
        try:
            with self._changed:
                fd = self._shelf.take(place)
            if fd is None:
                return None
            try:
                return read(fd, place, group, content)
            finally:
                os.close(fd)
        except (Damaged, OSError, MemoryError) as error:
            log.warning("a block on disk is damaged (%s); it is computed again", error)
            with self._changed:
                self.stats.errors += 1
                if self._index.get((group, content)) == place:
                    del self._index[group, content]
            return None
