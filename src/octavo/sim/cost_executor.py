"""An executor whose steps cost simulated time: what a machine would need, without the machine.

Owns: the linear model of a step's cost, and moving the simulated clock by it.
Does not know: tokens and the rules of the seam (null_executor), or who is served (core).

    seconds = base + tokens * per_token + rows * per_row + KV tokens read * per_kv_token

A row reads the keys and values of the positions up to its own last one, once: that is how paged
attention over a chunk works, and why decoding with long contexts is slow although it is one token.
The device computes one step at a time: with two in flight the second begins when the first ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from octavo.core.plan import Executor, StepPlan, StepResult
from octavo.sim.clock import SimulatedClock
from octavo.sim.null_executor import NullExecutor


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds. The defaults are about those of a model of 135 million weights on two CPU cores:
    some milliseconds to read the weights, and as much again for a dozen tokens."""

    base: float = 0.004
    per_token: float = 0.0003
    per_row: float = 0.00005
    per_kv_token: float = 0.000001

    def __post_init__(self) -> None:
        for name in ("base", "per_token", "per_row", "per_kv_token"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")

    def seconds(self, plan: StepPlan) -> float:
        """What one step takes."""
        tokens = sum(len(row.tokens) for row in plan.rows)
        read = sum(row.start + len(row.tokens) for row in plan.rows)
        return (
            self.base
            + tokens * self.per_token
            + len(plan.rows) * self.per_row
            + read * self.per_kv_token
        )


class CostExecutor:
    """Answers as `inner` does (by default an executor that makes tokens up) and lets the clock move
    on to the step's end when the step is collected. `longest` is the longest step so far."""

    def __init__(
        self,
        clock: SimulatedClock,
        cost: CostModel | None = None,
        inner: Executor | None = None,
        max_in_flight: int = 1,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.longest = 0.0
        self._clock = clock
        self._cost = cost or CostModel()
        self._inner: Executor = inner or NullExecutor(max_in_flight=max_in_flight)
        self._free_at = 0.0
        """When the device has done all that was submitted."""
        self._ends: deque[float] = deque()

    def submit(self, plan: StepPlan) -> Any:
        handle = self._inner.submit(plan)
        seconds = self._cost.seconds(plan)
        self.longest = max(self.longest, seconds)
        self._free_at = max(self._free_at, self._clock.now()) + seconds
        self._ends.append(self._free_at)
        return handle

    def collect(self, handle: Any) -> StepResult:
        result = self._inner.collect(handle)
        self._clock.advance_to(self._ends.popleft())
        return result
