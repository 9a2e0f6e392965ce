"""The scheduler: what enters, which step comes next, what a step's result means.

Owns: the interface of the core. `add`, `schedule`, `commit`, `abort`, `resolve_stall`.
Does not know: clocks, sockets, text, or how a step is computed.

    scheduler.add(submission)                    # may raise Refused
    while scheduler.has_work():
        plan = scheduler.schedule(now)
        if not plan.empty:
            outputs = scheduler.commit(plan, executor.collect(executor.submit(plan)), now)
        else:
            outputs = scheduler.resolve_stall(now)

With an asynchronous executor, one more plan may be made before the previous one is committed;
commits come in the order of plans. A plan that is `empty` is to be dropped: what it would have told
the executor (`ended`) is kept for the next one. While a step is in flight, an empty plan means only
that its result is needed first. With a tier, plans may have transfers and no rows.
"""

from __future__ import annotations

from octavo.core.commit import Flight, commit_rows
from octavo.core.config import SchedulerConfig
from octavo.core.deadlines import expire
from octavo.core.events import Event, EventKind, Sink
from octavo.core.intake import Intake
from octavo.core.lifecycle import Lifecycle
from octavo.core.plan import StepPlan, StepResult, Want
from octavo.core.planner import Planner
from octavo.core.policy import Policy, make_policy
from octavo.core.request import FinishReason, Output, Refused, Submission
from octavo.core.sequence import Live, State
from octavo.core.stats import SchedulerStats, snapshot
from octavo.core.throughput import Throughput
from octavo.core.tier import Tier

MAX_IN_FLIGHT = 2


class Scheduler:
    """Not thread-safe: one loop owns it."""

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy | None = None,
        sink: Sink | None = None,
        tier: Tier | None = None,
    ) -> None:
        """`policy` overrides the one that the config names; `sink` receives events; blocks outside
        the pool are in `tier`."""
        self.config = config
        policy = policy or make_policy(config.policy, config.priority_ageing)
        self.books = Lifecycle(config, policy, sink, tier)
        """All state; for the core's own modules and for tests."""
        self.counters = self.books.counters
        self.flights: dict[int, list[Flight]] = {}
        """Rows of plans not committed yet, by step."""
        self._sink = sink
        self._planner = Planner(self.books)
        self._throughput = Throughput()
        self._intake = Intake(self.books, self._throughput)
        self._began: dict[int, float] = {}
        """When each step in flight was planned."""
        self._committed: float | None = None
        """When the last step was committed."""
        self._last_alone = False
        self._stalled = False

    def add(
        self,
        submission: Submission,
        block_hashes: list[bytes] | None = None,
        now: float | None = None,
    ) -> None:
        """Queue a request. Raises Refused, and then keeps nothing of it.

        `block_hashes` replaces the hashes of the prompt's full blocks, for traces that name blocks
        instead of tokens. A request with nothing to compute (max_tokens 0 without prompt logprobs)
        is finished at once; its outputs come with the next ones. `now` is its arrival unless said.
        """
        self._stalled = False
        if not self.books.live:
            self._throughput.rest()
        try:
            live = self._intake.accept(
                submission, block_hashes or [], submission.arrival if now is None else now
            )
        except Refused as refused:
            counts = self.books.counters.refused
            counts[refused.code] = counts.get(refused.code, 0) + 1
            if self._sink is not None:
                self._sink(
                    Event(
                        EventKind.REFUSED,
                        self.books.step,
                        submission.request_id,
                        detail=refused.code,
                    )
                )
            raise
        if live is not None:
            self.books.enter(live)
            for sequence in live.sequences:
                self.books.emit(EventKind.ADDED, sequence, sequence.prompt_len)
            self._intake.finish_done(live)

    def schedule(self, now: float) -> StepPlan:
        """The next step. At most two plans may be without a commit (RuntimeError)."""
        if len(self.flights) >= MAX_IN_FLIGHT:
            raise RuntimeError(
                f"{MAX_IN_FLIGHT} steps are in flight; commit one before planning the next"
            )
        books = self.books
        books.ready += expire(books, now)
        plan = StepPlan(step=books.step)
        plan.transfers += books.tier.stores()
        books.running.sort(key=books.policy.key)
        for alone in self._turns():
            self._planner.fill(plan, alone, now)
            if plan.rows:
                self._last_alone = alone
                break
        plan.waits = not plan.rows and not self.flights and books.tier.loading
        if not plan.empty:
            plan.ended, books.ended = books.ended, []
            running = {sequence.rid: sequence for sequence in books.running}
            self.flights[plan.step] = [
                Flight(
                    running[row.rid],
                    len(row.tokens),
                    Want.SAMPLE in row.want,
                    Want.PROMPT_LOGPROBS in row.want,
                )
                for row in plan.rows
            ]
            self._began[plan.step] = now
            books.step += 1
            books.counters.steps += 1
        books.demand.planned(self._intake.next_rid)
        self._stalled = plan.empty and not (self.flights or books.ready)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Output]:
        """Apply the result of the oldest plan in flight (RuntimeError for another)."""
        if plan.step != next(iter(self.flights), None):
            raise RuntimeError(f"step {plan.step} is not the oldest one in flight")
        flights = self.flights.pop(plan.step)
        began = self._began.pop(plan.step)
        if flights:
            tokens = sum(flight.count for flight in flights)
            self.books.demand.passed(self._throughput.record(now, tokens, began))
        self._measure(flights, now)
        outputs = commit_rows(self.books, flights, plan, result, now)
        return self._take_ready() + outputs

    def abort(self, request_id: str, choice: int | None = None, now: float = 0.0) -> list[Output]:
        """End one choice of a request, or all. Nothing happens where none is unfinished."""
        self._stalled = False
        live = self.books.live.get(request_id)
        outputs = self._take_ready()
        for sequence in list(live.sequences) if live is not None else []:
            if sequence.state is not State.FINISHED and choice in (None, sequence.choice):
                outputs.append(self.books.finish(sequence, FinishReason.ABORT))
        return outputs

    def resolve_stall(self, now: float) -> list[Output]:
        """What there is to say after an empty plan.

        That is: outputs that were ready, or nothing while a step is in flight. If neither, and yet
        requests are unfinished, the first of them in order is failed with the code "stalled", so
        that the engine never spins. The scheduler is built so that this does not happen.
        """
        if self._stalled and self.books.live:
            self._stalled = False
            books = self.books
            books.counters.stalls += 1
            live = self._head()
            tables = books.tables
            message = (
                f"nothing could be scheduled: {tables.held} of {tables.capacity} blocks held, "
                f"{len(books.running)} sequences running, {self.waiting} waiting"
            )
            books.ready += books.fail(live, message, "stalled")
        return self._take_ready()

    def has_work(self) -> bool:
        """Whether requests are unfinished, steps or loads in flight, or outputs to be fetched."""
        books = self.books
        return bool(books.live or self.flights or books.ready or books.tier.loading)

    @property
    def storing(self) -> bool:
        """Whether blocks are to be copied to the tier yet: plans may be asked for without work."""
        return self.books.tier.storing

    @property
    def waiting(self) -> int:
        """Sequences that wait for a row or for another's prefix (forks are not counted)."""
        books = self.books
        behind = sum(
            sequence.state is State.WAITING
            for live in list(books.alone)[1:]
            for sequence in live.sequences
        )
        queued = len(books.queue) + len(books.batch_queue) + len(books.alone_queue)
        return queued + len(books.dedup) + len(books.tier) + behind

    def stats(self) -> SchedulerStats:
        """A snapshot. Walks the tables of running sequences."""
        return snapshot(self.books, self.waiting, self._planner.share.credit)

    def reset_prefix_cache(self) -> int:
        """Forget all cached content; running requests go on. Returns the blocks forgotten."""
        self.books.tier.reset()
        return max(pool.reset_cache() for pool in self.books.tables.pools)

    def _measure(self, flights: list[Flight], now: float) -> None:
        """How long sequences that decode waited for this step's token: since the last step."""
        books, before = self.books, self._committed
        self._committed = now
        if before is not None and any(one.samples and one.sequence.outputs for one in flights):
            books.limits.note_tpot(now - before, len(books.running))

    def _turns(self) -> tuple[bool, ...]:
        """Steps of the request that must be by itself alternate with those of all others."""
        if not self.books.alone:
            return (False,)
        return (not self._last_alone, self._last_alone)

    def _take_ready(self) -> list[Output]:
        ready, self.books.ready = self.books.ready, []
        return ready

    def _head(self) -> Live:
        books = self.books
        if books.running:
            return books.running[0].live
        first = books.queue.peek() or books.alone_queue.peek() or books.batch_queue.peek()
        return first.live if first is not None else next(iter(books.live.values()))
