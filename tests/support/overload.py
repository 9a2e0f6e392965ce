"""A simulated engine under a given load: what a step costs is a formula, and the clock is its sum.

Owns: the loop over arrivals and steps, and what became of each request.
Does not know: which load is offered, or what counts as good.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.core.config import SchedulerConfig
from octavo.core.params import SamplingParams
from octavo.core.request import FinishReason, Output, Refused, Submission
from octavo.core.scheduler import Scheduler
from octavo.sim.null_executor import NullExecutor

BASE, PER_TOKEN = 0.02, 0.0002
"""Seconds of a step, and of each token in it."""
EOS = 0


def until_seed(seed: int, choice: int, position: int) -> int:
    """An answer ends at the position that its seed names: nobody knows before how long it is."""
    return EOS if position >= seed else 1


@dataclass
class Fate:
    """What became of a request; `seconds` is its share of the steps it was in."""

    submission: Submission
    refused: str = ""
    """The code of its refusal."""
    first: float | None = None
    ended: float | None = None
    reason: FinishReason | None = None
    error_code: str | None = None
    seconds: float = 0.0


@dataclass
class Offer:
    """A load: Poisson arrivals, prompts and outputs of the given ranges."""

    per_second: float
    seconds: float
    prompts: tuple[int, int] = (50, 250)
    outputs: tuple[int, int] = (20, 140)
    timeouts: tuple[float | None, ...] = (None,)
    seed: int = 1

    def requests(self) -> Iterator[Submission]:
        rng = random.Random(self.seed)
        now = number = 0.0
        while (now := now + rng.expovariate(self.per_second)) < self.seconds:
            number += 1
            prompt = [rng.randrange(1, 1000) for _ in range(rng.randint(*self.prompts))]
            yield Submission(
                f"r{number:.0f}",
                prompt,
                SamplingParams(max_tokens=500),
                seed=len(prompt) + rng.randint(*self.outputs) - 1,
                arrival=now,
                timeout=rng.choice(self.timeouts),
            )


@dataclass
class Engine:
    """Copied as a whole, it goes on from the same state."""

    config: SchedulerConfig
    now: float = 0.0
    fates: dict[str, Fate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.config)
        self.executor = NullExecutor(until_seed)
        self.busy = 0.0

    def offer(self, submission: Submission) -> Refused | None:
        fate = self.fates[submission.request_id] = Fate(submission)
        try:
            self.scheduler.add(submission, now=self.now)
        except Refused as refused:
            fate.refused = refused.code
            return refused
        return None

    def step(self) -> None:
        plan = self.scheduler.schedule(self.now)
        if not plan.rows:
            self._see(self.scheduler.resolve_stall(self.now))
            return
        flights = self.scheduler.flights[plan.step]
        ids = [flight.sequence.live.submission.request_id for flight in flights]
        result = self.executor.collect(self.executor.submit(plan))
        seconds = BASE + PER_TOKEN * sum(len(row.tokens) for row in plan.rows)
        self.now += seconds
        self.busy += seconds
        for request_id in ids:
            self.fates[request_id].seconds += seconds / len(ids)
        self._see(self.scheduler.commit(plan, result, self.now))

    def until(self, time: float) -> None:
        """Step until then; at rest the clock jumps."""
        while self.now < time and self.scheduler.has_work():
            self.step()
        self.now = max(self.now, time)

    def finish(self) -> None:
        while self.scheduler.has_work():
            self.step()

    def _see(self, outputs: list[Output]) -> None:
        for output in outputs:
            fate = self.fates[output.request_id]
            if output.tokens and fate.first is None:
                fate.first = self.now
            if output.finish_reason is not None:
                fate.ended, fate.reason = self.now, output.finish_reason
                fate.error_code = output.error_code
