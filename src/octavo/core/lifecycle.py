"""The scheduler's books, and every change of a sequence's state.

Owns: who is live, running, queued or parked; the tables; what is still to be told to the executor
(`ended`) and to the client (`ready`).
Does not know: budgets (planner) or results (commit).

    add --> WAITING --begin--> RUNNING --finish--> FINISHED     (finish: from every state)
               |  ^               |
    park, load |  | wake          | preempt: back to WAITING, blocks released
               v  |
       PARKED, LOADING          FORKING --fork--> RUNNING, or WAITING where no row is free

Blocks of a sequence with rows in flight are not released before those rows are collected: finished
ones linger (`lingering`), victims are marked (`yields`) and preempted at that commit.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from octavo.core.adaptive import AdaptiveBatch
from octavo.core.admission import OutputLengths
from octavo.core.config import SchedulerConfig
from octavo.core.deadlines import Deadlines
from octavo.core.dedup import InFlightPrefixes
from octavo.core.demand import Demand
from octavo.core.events import Event, EventKind, Sink
from octavo.core.plan import Load
from octavo.core.policy import ByClass, Policy
from octavo.core.request import DEADLINE_EXCEEDED, FinishReason, Output
from octavo.core.sequence import Live, Sequence, State, Wait
from octavo.core.stats import Cause, Counters
from octavo.core.tables import Tables
from octavo.core.tier import Tier, TierBook
from octavo.core.waiting import WaitingQueue

_RECLAIMED = {
    FinishReason.STOP: "finished",
    FinishReason.LENGTH: "finished",
    FinishReason.ABORT: "aborted",
    FinishReason.ERROR: "failed",
}
"""Why the blocks of an ended sequence go back to the pool."""


class Lifecycle:
    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        sink: Sink | None,
        tier: Tier | None = None,
    ) -> None:
        self.config = config
        self.policy: Policy = ByClass(policy)
        self.tables = Tables(config.group_specs)
        self.dedup = InFlightPrefixes()
        self.tier = TierBook(self.tables, tier if config.enable_prefix_caching else None)
        self.lengths = OutputLengths()
        self.counters = Counters()
        self.limits = AdaptiveBatch(
            config.max_running,
            config.max_num_batched_tokens,
            config.target_tpot,
            config.target_latency,
            config.adaptive_rule,
        )
        """Of a step, as they are now."""
        self.live: dict[str, Live] = {}
        self.running: list[Sequence] = []
        """In the policy's order."""
        self.queue = WaitingQueue(self.policy)
        """Realtime sequences."""
        self.batch_queue = WaitingQueue(self.policy)
        self.alone_queue = WaitingQueue(self.policy)
        """Sequences of the one active request that must not share a step."""
        self.alone: deque[Live] = deque()
        """Such requests in order of arrival; the first is the active one."""
        self.lingering: dict[int, Sequence] = {}
        """Finished sequences with rows in flight, by rid."""
        self.yielding = 0
        """Running sequences marked to be preempted."""
        self.demand = Demand()
        self.deadlines = Deadlines()
        self.unstarted_requests = 0
        self.unstarted_tokens = 0
        self.step = 0
        self.ended: list[int] = []
        self.ready: list[Output] = []
        self._sink = sink

    @property
    def waiting_batch(self) -> int:
        """Sequences of the batch class that are waiting, parked or loading."""
        apart = sum(
            sequence.batch and sequence.state is State.WAITING
            for live in self.alone
            for sequence in live.sequences
        )
        return len(self.batch_queue) + self.dedup.batch + self.tier.batch + apart

    # ---- states -------------------------------------------------------------------------------

    def enter(self, live: Live) -> None:
        """A new request: its sequences are made, none is queued yet."""
        self.live[live.submission.request_id] = live
        self.unstarted_requests += 1
        self.unstarted_tokens += len(live.submission.prompt)
        self.demand.of(live).enter(live)
        self.deadlines.add(live)
        if live.submission.alone:
            self.alone.append(live)
        self.policy.entered(live)
        self._enqueue_all(live)

    def begin(self, sequence: Sequence, now: float) -> None:
        """WAITING or FORKING to RUNNING."""
        sequence.state, sequence.wait = State.RUNNING, Wait.NONE
        insort(self.running, sequence, key=self.policy.key)
        self._start(sequence.live, now)

    def park(self, sequence: Sequence, owner: Sequence, index: int) -> None:
        """WAITING to PARKED: `owner` computes the sequence's block at `index`."""
        self._queue_of(sequence).remove(sequence)
        sequence.state, sequence.wait = State.PARKED, Wait.PREFIX
        self.dedup.park(sequence, owner, index)
        self.emit(EventKind.PARKED, sequence, owner.rid)

    def load(self, sequence: Sequence, full: int, hits: int) -> list[Load] | None:
        """WAITING to LOADING, if a tier has more of its blocks than the pool; what is to be loaded
        for it (nothing, where it is under way already). None: it stays."""
        loads = self.tier.fetch(sequence, full, hits)
        if loads is not None:
            self._queue_of(sequence).remove(sequence)
            sequence.state, sequence.wait = State.LOADING, Wait.TIER
            self.emit(EventKind.LOADING, sequence, len(loads))
        return loads

    def wake(self, sequences: list[Sequence]) -> None:
        """PARKED or LOADING to WAITING, to be looked at anew."""
        for sequence in sequences:
            self.emit(EventKind.WOKEN, sequence)
            self.enqueue(sequence)

    def enqueue(self, sequence: Sequence) -> None:
        sequence.state, sequence.wait = State.WAITING, Wait.QUEUE
        if sequence.alone and self.alone[0] is not sequence.live:
            sequence.wait = Wait.ALONE
        else:
            self._queue_of(sequence).push(sequence)

    def take(self, sequence: Sequence) -> None:
        """Out of the queue, to begin."""
        self._queue_of(sequence).remove(sequence)

    def preempt(self, sequence: Sequence, cause: Cause) -> None:
        """RUNNING to WAITING: the blocks go, all known tokens are computed again later."""
        self.emit(EventKind.PREEMPTED, sequence, sequence.computed, cause)
        self.counters.preempted(cause, sequence.live.submission.service_class)
        sequence.preemptions += 1
        sequence.squeezed += cause is Cause.BLOCKS
        sequence.sheltered = False
        self.unyield(sequence)
        self.running.remove(sequence)
        woken = self.dedup.stop(sequence)
        self.counters.reclaim("preempted", self.tables.release(sequence.tables))
        self._tell_ended(sequence)
        sequence.computed = sequence.published = sequence.write_from = 0
        sequence.fetched = False
        sequence.scored = len(sequence.live.prompt_logprobs)
        self.enqueue(sequence)
        self.wake(woken)

    def yield_later(self, sequence: Sequence, cause: Cause) -> None:
        """Preempt a running sequence once its rows in flight are collected."""
        sequence.yields, sequence.yields_to = True, cause
        self.yielding += 1

    def unyield(self, sequence: Sequence) -> None:
        if sequence.yields:
            sequence.yields = False
            self.yielding -= 1

    def fork(self, leader: Sequence, now: float) -> None:
        """The leader's prompt is committed: the other choices share its blocks and begin.

        They compute the prompt's last token once more, unwritten, for their own first sample.
        Where no row is free they are queued instead, and find the prompt in the prefix cache.
        """
        live = leader.live
        forks, live.forks = live.forks, []
        for sequence in forks:
            if len(self.running) >= self.limits.rows:
                self.enqueue(sequence)
                continue
            n = leader.prompt_len
            sequence.tables = self.tables.share(leader.tables, n)
            sequence.computed, sequence.write_from = n - 1, n
            sequence.published = min(leader.published, n // self.config.block_size)
            sequence.hashes = leader.hashes[: n // self.config.block_size]
            self.emit(EventKind.FORKED, sequence, leader.rid)
            self.begin(sequence, now)

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        output: Output | None = None,
        error: str | None = None,
        code: str | None = None,
    ) -> Output:
        """Any state to FINISHED. Fills in and returns `output` (a new one by default)."""
        output = output or self.output(sequence)
        output.finish_reason = reason
        output.error, output.error_code = error, code
        sequence.reclaim = "expired" if code == DEADLINE_EXCEEDED else _RECLAIMED[reason]
        state, sequence.state = sequence.state, State.FINISHED
        live = sequence.live
        woken: list[Sequence] = []
        if state is State.WAITING:
            self._queue_of(sequence).remove(sequence)
        elif state is State.PARKED:
            self.dedup.unpark(sequence)
        elif state is State.LOADING:
            self.tier.leave(sequence)
        elif state is State.FORKING:
            live.forks.remove(sequence)
        else:
            self.unyield(sequence)
            self.running.remove(sequence)
            woken = self.dedup.stop(sequence)
            if sequence.rows_in_flight:
                self.lingering[sequence.rid] = sequence
            else:
                self._give_back(sequence)
        self._tell_ended(sequence)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.lengths.record(sequence.outputs)
        finished = self.counters.finished
        finished[reason.value] = finished.get(reason.value, 0) + 1
        self.emit(EventKind.FINISHED, sequence, sequence.outputs, reason)
        self._leave(sequence)
        self.wake(woken)
        return output

    def fail(self, live: Live, message: str, code: str) -> list[Output]:
        """Finish all choices of a request with an error."""
        return [
            self.finish(sequence, FinishReason.ERROR, error=message, code=code)
            for sequence in list(live.sequences)
            if sequence.state is not State.FINISHED
        ]

    def collected(self, sequence: Sequence) -> None:
        """A finished sequence's row was collected: with the last one its blocks are released."""
        if not sequence.rows_in_flight:
            del self.lingering[sequence.rid]
            self._give_back(sequence)

    # ---- what is told -------------------------------------------------------------------------

    def output(self, sequence: Sequence) -> Output:
        """An output of this choice, with what comes once if it is the first."""
        live = sequence.live
        output = Output(
            live.submission.request_id,
            sequence.choice,
            cumulative_logprob=sequence.cumulative_logprob,
            preemptions=sequence.preemptions,
        )
        if not sequence.reported:
            sequence.reported = True
            output.cached_tokens = live.cached_tokens
            if live.started is not None:
                output.queue_time = max(0.0, live.started - live.submission.arrival)
        return output

    def emit(self, kind: EventKind, sequence: Sequence, value: int = 0, detail: str = "") -> None:
        if self._sink is not None:
            request_id = sequence.live.submission.request_id
            self._sink(
                Event(kind, self.step, request_id, sequence.choice, sequence.rid, value, detail)
            )

    # ---- within -------------------------------------------------------------------------------

    def _give_back(self, sequence: Sequence) -> None:
        self.counters.reclaim(sequence.reclaim, self.tables.release(sequence.tables))

    def _queue_of(self, sequence: Sequence) -> WaitingQueue:
        if sequence.alone:
            return self.alone_queue
        return self.batch_queue if sequence.batch else self.queue

    def _enqueue_all(self, live: Live) -> None:
        for sequence in live.sequences:
            if sequence.state is State.WAITING:
                self.enqueue(sequence)

    def _start(self, live: Live, now: float) -> None:
        if live.started is None:
            live.started = now
            self.policy.began(live)
            self._no_longer_unstarted(live, began=True)
            self.counters.looked_up(len(live.submission.prompt), live.cached_tokens or 0)

    def _no_longer_unstarted(self, live: Live, began: bool) -> None:
        self.demand.of(live).leave(live, began)
        self.unstarted_requests -= 1
        self.unstarted_tokens -= len(live.submission.prompt)

    def _tell_ended(self, sequence: Sequence) -> None:
        if sequence.introduced:
            sequence.introduced = False
            self.ended.append(sequence.rid)

    def _leave(self, sequence: Sequence) -> None:
        """After a choice has finished: another may have to lead, or the request is over."""
        live = sequence.live
        live.unfinished -= 1
        if live.leader is sequence and live.forks:
            heir = live.forks.pop(0)
            live.leader = heir
            live.prompt_logprobs = []
            self.enqueue(heir)
        if live.unfinished:
            return
        del self.live[live.submission.request_id]
        self.deadlines.remove(live)
        self.policy.left(live)
        if live.started is None:
            self._no_longer_unstarted(live, began=False)
        if live.submission.alone:
            was_active = self.alone[0] is live
            self.alone.remove(live)
            if was_active and self.alone:
                self._enqueue_all(self.alone[0])
