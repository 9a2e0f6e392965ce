"""Counts the bytes of a checkpoint as they are packed.

Owns: `Metered`, a WeightSource around another.
Does not know: what packs them, or who shows the count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from octavo.model.spec import WeightSource
from octavo.ops import RawWeight

Progress = Callable[[int, int], None]
"""Called with (bytes packed, bytes in all)."""

_INTERVAL = 0.1
"""Seconds between two reports: packing one matrix of a small model takes less than one costs."""


class Metered:
    """Hands `source`'s tensors on, and reports what of its `total` bytes is done with. Reports come
    from whichever thread packs, one at a time, and an exception of theirs ends the loading."""

    def __init__(self, source: WeightSource, total: int, report: Progress) -> None:
        self._source = source
        self._total = total
        self._report = report
        self._sizes: dict[str, int] = {}
        self._done = 0
        self._reported = time.monotonic()
        self._lock = threading.Lock()
        report(0, total)

    def get(self, name: str) -> RawWeight:
        weight = self._source.get(name)
        self._sizes[name] = int(getattr(weight.data, "nbytes", 0))
        return weight

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def done(self, name: str) -> None:
        self._source.done(name)
        with self._lock:
            self._done = min(self._done + self._sizes.pop(name, 0), self._total)
            now = time.monotonic()
            if now - self._reported >= _INTERVAL:
                self._reported = now
                self._report(self._done, self._total)

    def close(self) -> None:
        self._source.close()

    def finish(self) -> None:
        """All is packed, also what no one called done (vectors, headers)."""
        with self._lock:
            self._report(self._total, self._total)
