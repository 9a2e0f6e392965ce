"""How fast the queue moves, for Retry-After.

Owns: the recent rate of computed tokens.
Does not know: the wall clock; times are handed in.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 128
MAX_RETRY_AFTER = 600.0


class Throughput:
    """Tokens computed per second over the last steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._tokens = 0

    def record(self, now: float, tokens: int) -> None:
        if len(self._steps) == WINDOW:
            self._tokens -= self._steps[0][1]
        self._steps.append((now, tokens))
        self._tokens += tokens

    @property
    def tokens_per_second(self) -> float | None:
        """None until two steps at different times were seen."""
        if len(self._steps) < 2:
            return None
        seconds = self._steps[-1][0] - self._steps[0][0]
        # The first entry's tokens were computed before its time.
        tokens = self._tokens - self._steps[0][1]
        return tokens / seconds if seconds > 0 and tokens > 0 else None

    def retry_after(self, tokens: float) -> float:
        """Whole seconds until about `tokens` will have been computed, between 1 and 600."""
        rate = self.tokens_per_second
        if rate is None:
            return 1.0
        return float(min(MAX_RETRY_AFTER, max(1.0, math.ceil(tokens / rate))))
