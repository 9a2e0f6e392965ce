"""A clock that moves only when it is told to.

Owns: simulated time.
Does not know: what takes how long (cost_executor), or who asks.
"""

from __future__ import annotations


class SimulatedClock:
    """Seconds from `start`. The same calls give the same times, on any machine."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Raises ValueError for a step back: the engine's clock is monotonic."""
        if not seconds >= 0.0:
            raise ValueError(f"seconds is {seconds}; simulated time moves forward only")
        self._now += seconds

    def advance_to(self, time: float) -> None:
        """Move to `time`; nothing happens where that has passed."""
        self._now = max(self._now, time)
