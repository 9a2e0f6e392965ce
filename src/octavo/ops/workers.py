"""Threads that share the work of one op in small claimed pieces.

Owns: a pool of threads, and the way pieces are handed out.
Does not know: what a piece is.

Pieces are claimed one at a time from a counter, because on a shared machine a static split waits
for the slowest core; the caller works too. Which thread computes a piece never changes its result,
so results do not depend on the number of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Workers:
    """`threads` in all, the caller's included. Idle threads sleep."""

    def __init__(self, threads: int) -> None:
        self._helpers = max(0, threads - 1)
        self._pool = ThreadPoolExecutor(self._helpers, "octavo-ops") if self._helpers else None

    def run(self, pieces: int, work: Callable[[int], None]) -> None:
        """Calls `work(i)` once for each i in `0 ..< pieces`, and returns when all are done.
        Raises what a piece raised."""
        if self._pool is None or pieces < 2:
            for index in range(pieces):
                work(index)
            return
        claim = itertools.count().__next__  # atomic: it does not leave C code

        def claimed() -> None:
            while (index := claim()) < pieces:
                work(index)

        helpers = [self._pool.submit(claimed) for _ in range(min(self._helpers, pieces - 1))]
        try:
            claimed()
        finally:
            for helper in helpers:
                if not helper.cancel():
                    helper.result()
