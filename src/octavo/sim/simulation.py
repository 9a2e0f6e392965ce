"""A run of the real engine loop in simulated time: arrivals in, latencies out.

Owns: the loop over arrivals and steps, and what is noted of each request.
Does not know: how a step is chosen (core) or what it costs (cost_executor). It drives the scheduler
and the loop of production; only the clock and the executor are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from octavo.core.config import SchedulerConfig
from octavo.core.request import FinishReason, Output, Refused, ServiceClass, Submission
from octavo.core.scheduler import Scheduler
from octavo.engine.engine_core import EngineCore
from octavo.sim.clock import SimulatedClock
from octavo.sim.cost_executor import CostExecutor, CostModel

VOCABULARY = 32_000


@dataclass(slots=True)
class Told:
    """What was seen of one request, in seconds of simulated time; None: it never came."""

    submission: Submission
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    tokens: int = 0
    preemptions: int = 0
    refused: str | None = None
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.submission.arrival

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first; None where there is only one."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def latency(self) -> float | None:
        return None if self.ended is None else self.ended - self.submission.arrival


@dataclass(slots=True)
class Report:
    """All requests in order of arrival, and the run as a whole."""

    requests: list[Told] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0
    longest_step: float = 0.0
    token_log: list[tuple[float, ServiceClass, int]] = field(default_factory=list)
    """(when, class, how many) of all tokens generated."""

    def of(self, service_class: ServiceClass) -> list[Told]:
        return [told for told in self.requests if told.submission.service_class == service_class]

    def generated(
        self, service_class: ServiceClass | None = None, until: float = float("inf")
    ) -> int:
        """Tokens generated for a class (or all) up to some time."""
        return sum(
            count
            for when, whose, count in self.token_log
            if when <= until and service_class in (None, whose)
        )


class Simulation:
    """`arrivals` are submissions with their times; each is added at the first moment from then on
    at which the loop looks at its inbox: between steps, as in the engine's process."""

    def __init__(
        self,
        config: SchedulerConfig,
        cost: CostModel | None = None,
        max_in_flight: int = 1,
    ) -> None:
        self.clock = SimulatedClock()
        self.executor = CostExecutor(self.clock, cost, max_in_flight=max_in_flight)
        self.scheduler = Scheduler(config)
        self.core = EngineCore(
            self.scheduler, self.executor, self.clock, vocab_size=VOCABULARY, paranoid=False
        )
        self.report = Report()
        self._told: dict[str, Told] = {}

    def run(
        self,
        arrivals: Iterable[Submission],
        until: float = float("inf"),
        watch: Callable[[Simulation], None] | None = None,
    ) -> Report:
        """Until all is done, or until `until`; `watch` is called after every step."""
        coming = sorted(arrivals, key=lambda one: one.arrival)[::-1]
        while self.clock.now() < until and (coming or self.core.has_work):
            while coming and coming[-1].arrival <= self.clock.now():
                self._arrive(coming.pop())
            if not self.core.has_work:
                if not coming:
                    break
                self.clock.advance_to(min(until, coming[-1].arrival))
                continue
            self._see(self.core.step())
            if watch is not None:
                watch(self)
        self.report.seconds = self.clock.now()
        self.report.steps = self.scheduler.counters.steps
        self.report.longest_step = self.executor.longest
        return self.report

    def _arrive(self, submission: Submission) -> None:
        told = Told(submission)
        self.report.requests.append(told)
        try:
            self.core.add(submission)
        except Refused as refused:
            told.refused = refused.code
        else:
            self._told[submission.request_id] = told

    def _see(self, outputs: list[Output]) -> None:
        now = self.clock.now()
        for output in outputs:
            told = self._told[output.request_id]
            if output.tokens:
                told.first = now if told.first is None else told.first
                told.last = now
                told.tokens += len(output.tokens)
                service_class = told.submission.service_class
                self.report.token_log.append((now, service_class, len(output.tokens)))
            told.preemptions = max(told.preemptions, output.preemptions)
            if output.finish_reason is not None:
                told.ended = now
                if output.finish_reason == FinishReason.ERROR:
                    told.error = output.error


def percentile(values: Iterable[float | None], share: float) -> float:
    """The least value that at least `share` of the values do not exceed; absent ones are infinite,
    so that what never came counts as late. Raises ValueError where there is none at all."""
    ordered = sorted(float("inf") if value is None else value for value in values)
    if not ordered:
        raise ValueError("no value to take a percentile of")
    index = max(0, -int(-share * len(ordered) // 1) - 1)
    return ordered[index]
