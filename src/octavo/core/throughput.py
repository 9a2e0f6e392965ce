"""How fast steps go: the recent rates that predictions stand on.

Owns: the durations and sizes of the last steps, and the rates made of them.
Does not know: the wall clock (times are handed in), queues or requests.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 128
MAX_RETRY_AFTER = 600.0


class Throughput:
    """Tokens and seconds of the last steps. Rest between steps is not counted as computing."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._seconds = 0.0
        self._tokens = 0
        self._latest: float | None = None

    def rest(self) -> None:
        """There was nothing to do: the next step's time begins with the step."""
        self._latest = None

    def record(self, now: float, tokens: int, began: float) -> float:
        """A step that was scheduled at `began` and collected `now`; returns its seconds, which are
        those since the step before it where it had to wait for that one."""
        since = began if self._latest is None else self._latest
        self._latest = now
        seconds = now - since
        if seconds <= 0:
            return 0.0
        if len(self._steps) == WINDOW:
            gone = self._steps[0]
            self._seconds -= gone[0]
            self._tokens -= gone[1]
        self._steps.append((seconds, tokens))
        self._seconds += seconds
        self._tokens += tokens
        return seconds

    @property
    def step_seconds(self) -> float | None:
        """The mean step; None until one was seen."""
        return self._seconds / len(self._steps) if self._steps else None

    @property
    def tokens_per_second(self) -> float | None:
        return self._tokens / self._seconds if self._tokens > 0 else None

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """The rate of the largest steps: what prompts are computed at. Steps that only decode
        have few tokens, and would make a long prompt look far slower than it is."""
        if not self._steps:
            return None
        large = max(tokens for _, tokens in self._steps) / 2
        chosen = [(seconds, tokens) for seconds, tokens in self._steps if tokens >= large]
        tokens = sum(tokens for _, tokens in chosen)
        return tokens / sum(seconds for seconds, _ in chosen) if tokens else None

    def retry_after(self, tokens: float) -> float:
        """Whole seconds until about `tokens` will have been computed, between 1 and 600."""
        rate = self.tokens_per_second
        return whole_seconds(0.0 if rate is None else tokens / rate)


def whole_seconds(seconds: float) -> float:
    """As a Retry-After: whole, between 1 and 600."""
    return float(min(MAX_RETRY_AFTER, max(1.0, math.ceil(seconds))))
