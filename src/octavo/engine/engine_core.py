"""The whole loop: schedule, execute, commit.

Owns: one step at a time (two in flight where the executor is asynchronous), and what happens when
a step as a whole fails.
Does not know: processes and sockets, what a model is, or the wall clock.

    step():   schedule --> submit --> | in flight: 1, or 2 | --> collect --> commit --> outputs
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.core.invariants import check
from octavo.core.params import ParamError, check_token_id
from octavo.core.plan import Clock, Executor, RowResult, StepPlan, StepResult
from octavo.core.request import Output, Refused, Submission
from octavo.core.scheduler import Scheduler
from octavo.engine.errors import EngineFatal
from octavo.engine.recorder import Recorder, StepRecord
from octavo.engine.step_memory import RING_BYTES

MAX_FAILED_STEPS = 8
"""So many failed steps in a row, and the executor counts as broken."""


class Loaded(Protocol):
    """What loading a model yields, however it was loaded."""

    @property
    def executor(self) -> Executor: ...

    @property
    def info(self) -> Any:
        """A `model.info.ModelInfo`."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints compute equal tokens."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for people and programs, the fingerprint among them."""
        ...


class TierFigures(Protocol):
    """As `tiers.TierStats` has them."""

    @property
    def stored(self) -> int: ...
    @property
    def errors(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def active(self) -> bool: ...


class EngineTier(Protocol):
    """What the loop wants of a tier."""

    @property
    def stats(self) -> TierFigures: ...

    @property
    def busy(self) -> bool:
        """Blocks were taken and are not kept yet."""
        ...

    def wait(self, seconds: float) -> None: ...

    def close(self, flush: float = 0.0) -> None: ...


@dataclass(slots=True)
class _Flight:
    """A step that was submitted and not collected."""

    plan: StepPlan
    handle: Any
    record: StepRecord
    error: BaseException | None = None


class EngineCore:
    """Scheduler, executor and clock, joined. Not thread-safe.

    An executor with `max_in_flight` 2 gets the next step before the last one is collected.
    `vocab_size` bounds token ids. `mark` is called with the request ids of the steps in flight
    before each step begins, and with none when the engine comes to rest; then the scheduler's
    books are checked too, and after every step where `paranoid`. `tier` is the one that scheduler
    and executor share, for its figures and its end.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        vocab_size: int,
        recorder: Recorder | None = None,
        mark: Callable[[Sequence[str]], None] | None = None,
        paranoid: bool = False,
        tier: EngineTier | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.recorder = recorder or Recorder(bytearray(RING_BYTES))
        self._executor = executor
        self._clock = clock
        self._mark = mark
        self._paranoid = paranoid
        self._vocab_size = vocab_size
        self._tier = tier
        self._depth: int = getattr(executor, "max_in_flight", 1)
        self._flights: deque[_Flight] = deque()
        self._failed_steps = 0
        self._untold: list[int] = []
        """Ends named in a step that failed: it may not have come to reading them."""
        self._draining = False
        self.step_seconds = 0.0
        """Time spent in steps, for the statistics."""

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work()

    @property
    def storing(self) -> bool:
        """Whether blocks are on their way to the tier: steps without other work see to it."""
        return self.scheduler.storing or (self._tier is not None and self._tier.busy)

    def tier_figures(self) -> dict[str, Any]:
        """For the statistics; empty where there is no tier."""
        if self._tier is None:
            return {}
        stats = self._tier.stats
        return {
            "tier_stored_total": stats.stored,
            "tier_errors_total": stats.errors + int(getattr(self._executor, "errors", 0)),
            "tier_bytes": stats.bytes,
            "tier_active": stats.active,
        }

    def close(self, flush: float = 0.0) -> None:
        """No step follows. Blocks on their way to the tier get `flush` seconds, and those that
        are still in the pool as many, unless requests are unfinished."""
        if self._tier is None:
            return
        end = self._clock.now() + flush
        while self.scheduler.storing and not self.has_work and self._clock.now() < end:
            self.step()
            self._tier.wait(0.001)
        self._tier.close(flush)

    @property
    def nonfinite(self) -> int:
        """Rows that failed because their logits were not finite."""
        return int(getattr(self._executor, "nonfinite", 0))

    def add(self, submission: Submission) -> None:
        """Raises Refused: nothing that could spoil a step gets past here."""
        if self._draining:
            raise Refused("the engine is draining", "draining", retry_after=5.0)
        validate(submission, self._vocab_size)
        self.scheduler.add(submission, now=self._clock.now())

    def abort(self, request_id: str, choice: int | None = None) -> list[Output]:
        """Ends one choice or all; unknown ids are ignored (it may just have finished)."""
        return self.scheduler.abort(request_id, choice, self._clock.now())

    def drain(self) -> None:
        """From now on nothing is taken; what is here goes on."""
        self._draining = True

    def step(self) -> list[Output]:
        """Runs one step and returns what it yields. Raises EngineFatal when the executor fails
        again and again, InvariantError when the books contradict themselves; any other exception
        is a fault of the engine, too."""
        began = self._clock.now()
        while len(self._flights) < self._depth and self._begin():
            pass
        if self._flights:
            outputs = self._finish(self._flights.popleft())
        else:
            outputs = self.scheduler.resolve_stall(self._clock.now())
        idle = not self.has_work and not self.storing
        if idle and self._mark is not None:
            self._mark(())
        if idle or self._paranoid:
            check(self.scheduler)
        self.step_seconds += self._clock.now() - began
        return outputs

    def _begin(self) -> bool:
        """Schedules and submits a step; whether there was anything to do."""
        began = self._clock.now()
        plan = self.scheduler.schedule(began)
        if plan.empty:
            return False
        if self._untold:
            plan.ended = self._untold + plan.ended
            self._untold = []
        scheduled = self._clock.now()
        record = StepRecord(
            plan.step,
            rows=len(plan.rows),
            tokens=sum(len(row.tokens) for row in plan.rows),
            copies=len(plan.copies),
            in_flight=len(self._flights),
            began=began,
            scheduling=scheduled - began,
        )
        flight = _Flight(plan, None, record)
        self._flights.append(flight)
        self.recorder.write(record)
        if self._mark is not None:
            self._mark(self._ids_in_flight())
        try:
            flight.handle = self._executor.submit(plan)
        except Exception as error:
            flight.error = error
        record.submitting = self._clock.now() - scheduled
        return True

    def _finish(self, flight: _Flight) -> list[Output]:
        """Collects the oldest step and commits it, failed or not."""
        began = self._clock.now()
        result = self._collect(flight)
        collected = self._clock.now()
        outputs = self.scheduler.commit(flight.plan, result, collected)
        record = flight.record
        if flight.error is not None:
            for output in outputs:
                if output.error_code == "row_failed":
                    output.error_code = "engine_step_failed"
        record.state = "done" if flight.error is None else "failed"
        record.outputs, record.errors = len(outputs), len(result.errors)
        record.collecting = collected - began
        record.committing = self._clock.now() - collected
        self.recorder.write(record)
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineFatal(
                f"{self._failed_steps} steps in a row failed; the last one: {flight.error!r}"
            )
        return outputs

    def _collect(self, flight: _Flight) -> StepResult:
        """The step's result. An exception of the step becomes an error of each of its rows: other
        requests, and the engine, go on."""
        if flight.error is None:
            try:
                result = self._executor.collect(flight.handle)
            except Exception as error:
                flight.error = error
            else:
                self._failed_steps = 0
                return result
        self._failed_steps += 1
        self._untold += flight.plan.ended
        message = f"the step that computed this request failed: {flight.error!r}"
        rows = flight.plan.rows
        return StepResult([RowResult() for _ in rows], {row.rid: message for row in rows})

    def _ids_in_flight(self) -> list[str]:
        flights = self.scheduler.flights.values()
        ids = (one.sequence.live.submission.request_id for rows in flights for one in rows)
        return list(dict.fromkeys(ids))


def validate(submission: Submission, vocab_size: int) -> None:
    """Refuses what a client must not reach a step with. The server has looked already; this is
    the engine's own guard. Raises Refused."""
    try:
        for token in submission.prompt:
            check_token_id("prompt", token, vocab_size)
        submission.params.validate(vocab_size)
        for state in submission.resumed:
            for token in state.tokens:
                check_token_id("resumed", token, vocab_size)
    except ParamError as error:
        raise Refused(str(error), error.code or "invalid_request", error.param) from error
