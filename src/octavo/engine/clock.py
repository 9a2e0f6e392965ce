"""The production clock.

Owns: the one place of the engine that reads the wall clock.
Does not know: who asks. Tests and the simulator pass a clock of their own.
"""

from __future__ import annotations

import time


class MonotonicClock:
    """Seconds since boot. The same in every process of the machine, so that an arrival time noted
    by the API process can be compared in the engine process."""

    def now(self) -> float:
        return time.monotonic()
