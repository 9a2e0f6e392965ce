"""How often the engine may be restarted.

Owns: the rate (10 in 10 minutes by default).
Does not know: why it died, or the clock.
"""

from __future__ import annotations

from collections import deque


class RestartBudget:
    def __init__(self, limit: int = 10, window: float = 600.0) -> None:
        """At most `limit` restarts in any `window` seconds."""
        self.limit = limit
        self.window = window
        self._times: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Whether one more restart is allowed at `now` (it is then counted)."""
        while self._times and now - self._times[0] >= self.window:
            self._times.popleft()
        if len(self._times) >= self.limit:
            return False
        self._times.append(now)
        return True
