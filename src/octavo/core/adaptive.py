"""The adaptive batch: the limits of a step, moved so that a latency target is held.

Owns: the two limits (rows, tokens), what was measured, and the rules that move them.
Does not know: clocks, or how the limits are used (planner).

After every ten measurements a mean is compared with the target, and both limits are multiplied, up
to the configured maximum and down to 1:

    step            the mean of the last ten: under the target times 1.5, over it times 0.8
    proportional    the mean of the last fifty: by the root of aim / mean, from 0.8 to 1.2; the aim
                    lies a little below the target, and the rows are counted from those that run

The proportional rule is the default. The other one swings round the target, and is above it most of
the time, because it goes up by half before it comes down; and while a limit does not bind it tells
nothing of the load at which it would, so that a burst finds it far too high. A smaller limit of
rows ends nobody's row; it is never far below the rows that run, so that it does not run away while
they come to their ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

EVERY = 10
"""So many measurements between two moves."""
AIM = 0.95


@dataclass(frozen=True, slots=True)
class Rule:
    """`window` measurements make the mean; `steady`: rows are counted from those that run."""

    window: int
    steady: bool
    factor: Callable[[float, float], float]


def _step(mean: float, target: float) -> float:
    return 1.5 if mean < target else 0.8


def _proportional(mean: float, target: float) -> float:
    return 1.2 if mean <= 0 else float(min(1.2, max(0.8, (AIM * target / mean) ** 0.5)))


RULES = {"proportional": Rule(50, True, _proportional), "step": Rule(10, False, _step)}


class _Target:
    """One latency with its last measurements; None as target: it is not looked at."""

    def __init__(self, target: float | None, window: int) -> None:
        self.target = target
        self._recent: deque[float] = deque(maxlen=window)
        self._new = 0

    @property
    def mean(self) -> float:
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def note(self, seconds: float) -> bool:
        """Whether ten measurements have come since it last was so."""
        if self.target is None:
            return False
        self._recent.append(seconds)
        self._new += 1
        if self._new < EVERY:
            return False
        self._new = 0
        return True


class AdaptiveBatch:
    """`rows` and `tokens` are the limits now. Targets are in seconds: `tpot` for the time between
    two tokens of a sequence, `latency` for a request from its first step to its end. Without any
    the limits stay where they are."""

    def __init__(
        self,
        max_rows: int,
        max_tokens: int,
        tpot: float | None = None,
        latency: float | None = None,
        rule: str = "proportional",
    ) -> None:
        self._rule = RULES[rule]
        window = self._rule.window
        self.tpot, self.latency = _Target(tpot, window), _Target(latency, window)
        self.raised = self.lowered = 0
        """How often the limits were moved."""
        self._most = (max_rows, max_tokens)
        self._rows, self._tokens = float(max_rows), float(max_tokens)

    @property
    def rows(self) -> int:
        return int(self._rows)

    @property
    def tokens(self) -> int:
        return int(self._tokens)

    def note_tpot(self, seconds: float, running: int) -> None:
        """A step after which `running` sequences run brought them a token after so long."""
        if self.tpot.note(seconds):
            self._move(running)

    def note_latency(self, seconds: float, running: int) -> None:
        if self.latency.note(seconds):
            self._move(running)

    def _move(self, running: int) -> None:
        """By the factor of that target which asks for less."""
        factor = min(
            self._rule.factor(one.mean, one.target)
            for one in (self.tpot, self.latency)
            if one.target is not None and one.mean
        )
        rows, tokens = self._most
        before = (self._rows, self._tokens)
        base = self._rows
        if self._rule.steady:
            base = running + 1 if factor > 1 else max(1, running)
        elif factor < 1:
            base = min(base, max(1, running))
        self._rows = min(rows, max(1.0, base * factor))
        self._tokens = min(tokens, max(1.0, self._tokens * factor))
        self.raised += before < (self._rows, self._tokens)
        self.lowered += before > (self._rows, self._tokens)
