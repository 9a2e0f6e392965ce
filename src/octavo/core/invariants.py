"""What must be true of the scheduler after every step, checked from outside.

Owns: the checks, and `InvariantError`.
Does not know: how to repair anything. Tests check after every step, an engine when it is idle, or
after every step when it is told to be paranoid. All checks are O(blocks + sequences).

    counts equal table membership          check
    windows hold what is seen, no more     check
    free + held + cached = total           check
    every sequence is in one place         check
    waiting hold nothing, owners run       check
    no two rows of a step write one slot   check_plan
    work implies progress                  check_plan
    every request ends exactly once        Endings
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.blocks import BlockError
from octavo.core.plan import StepPlan
from octavo.core.request import Output
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import Sequence, State


class InvariantError(AssertionError):
    """The scheduler's books contradict themselves."""


def check(scheduler: Scheduler) -> None:
    """Raise InvariantError unless pools, tables and states agree."""
    books = scheduler.books
    holders = [*books.running, *books.lingering.values()]
    for group, pool in enumerate(books.tables.pools):
        try:
            pool.check()
        except BlockError as error:
            raise InvariantError(f"group {group}: {error}") from error
        counts = [0] * pool.total
        for sequence in holders:
            for block in sequence.tables[group].held():
                counts[block] += 1
        for block in books.tier.held(group):
            counts[block] += 1
        for block, count in enumerate(counts):
            if count != pool.refs(block):
                raise InvariantError(
                    f"group {group}: block {block} has {pool.refs(block)} references and is in "
                    f"{count} tables"
                )
        if pool.free + pool.held + pool.cached != pool.total or pool.free < 0:
            raise InvariantError(f"group {group}: free, held and cached do not add up")
        for sequence in books.running:
            first = sequence.tables[group].first
            if first != pool.spec.first_seen(sequence.computed):
                raise _wrong(sequence, f"group {group}: holds blocks from {first} on")
    _check_states(scheduler)


def _check_states(scheduler: Scheduler) -> None:
    books = scheduler.books
    running = {sequence.rid for sequence in books.running}
    runs = waits = 0
    for live in books.live.values():
        unfinished = 0
        for sequence in live.sequences:
            state = sequence.state
            if state is not State.FINISHED:
                unfinished += 1
                runs += state is State.RUNNING
                waits += state in (State.WAITING, State.PARKED, State.LOADING)
                _check_place(sequence, sequence.rid in running)
        if unfinished != live.unfinished or not unfinished:
            raise InvariantError(f"{live.submission.request_id}: unfinished choices miscounted")
    if runs != len(running) or runs != len(books.running):
        raise InvariantError("a sequence runs twice, or runs without a request")
    if waits != scheduler.waiting:
        raise InvariantError("waiting sequences are miscounted")
    if len(running) > books.config.max_running:
        raise InvariantError(f"{len(running)} sequences run")
    if books.yielding != sum(sequence.yields for sequence in books.running):
        raise InvariantError("yielding sequences are miscounted")
    unstarted = [live for live in books.live.values() if live.started is None]
    tokens = sum(len(live.submission.prompt) for live in unstarted)
    if (len(unstarted), tokens) != (books.unstarted_requests, books.unstarted_tokens):
        raise InvariantError("waiting requests or tokens are miscounted")
    if books.demand.counts() != (len(unstarted), tokens):
        raise InvariantError("the classes' waiting requests or tokens are miscounted")
    if len(books.deadlines) != sum(
        live.submission.deadline is not None for live in books.live.values()
    ):
        raise InvariantError("deadlines are miscounted")
    if any(not sequence.rows_in_flight for sequence in books.lingering.values()):
        raise InvariantError("a finished sequence lingers without rows in flight")


def _check_place(sequence: Sequence, runs: bool) -> None:
    state = sequence.state
    if runs != (state is State.RUNNING):
        raise _wrong(sequence, "its state and the list of running ones differ")
    if (sequence.owner is not None) != (state is State.PARKED):
        raise _wrong(sequence, "its state and its owner differ")
    if sequence.owner is not None and sequence.owner.state is not State.RUNNING:
        raise _wrong(sequence, "waits for one that does not run")
    if (sequence in sequence.live.forks) != (state is State.FORKING):
        raise _wrong(sequence, "its state and its request's forks differ")
    if state is State.FORKING and (
        sequence.live.leader is None or sequence.live.leader.state is State.FINISHED
    ):
        raise _wrong(sequence, "nobody computes its prompt")
    if not runs and (any(sequence.tables) or sequence.in_flight or sequence.introduced):
        raise _wrong(sequence, "holds blocks or rows and does not run")
    if sequence.start > sequence.known or len(sequence.tokens) > sequence.limit:
        raise _wrong(sequence, "more is computed than known, or known than allowed")


def _wrong(sequence: Sequence, what: str) -> InvariantError:
    return InvariantError(f"sequence {sequence.rid} ({sequence.state.value}): {what}")


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """Raise InvariantError unless a plan, just made, can be executed as it is."""
    books, config = scheduler.books, scheduler.config
    if not plan.rows:
        if plan.waits and not books.tier.loading:
            raise InvariantError("the step waits for loads, and none is under way")
        if not plan.empty:
            return
        if books.live and not scheduler.flights and not books.ready:
            raise InvariantError("work is present, nothing is in flight, and the plan is empty")
        return
    if len(plan.rows) > config.max_num_seqs:
        raise InvariantError(f"{len(plan.rows)} rows in a step")
    if sum(len(row.tokens) for row in plan.rows) > config.max_num_batched_tokens:
        raise InvariantError("the step exceeds its token budget")
    if len({row.rid for row in plan.rows}) != len(plan.rows):
        raise InvariantError("a sequence has two rows in one step")
    sequences = {sequence.rid: sequence for sequence in books.running}
    requests = {sequences[row.rid].live.submission.request_id for row in plan.rows}
    if len(requests) > 1 and any(sequences[row.rid].alone for row in plan.rows):
        raise InvariantError("a request that must be alone shares a step")
    for group, pool in enumerate(books.tables.pools):
        written: set[tuple[int, int]] = set()
        for row in plan.rows:
            end = row.start + len(row.tokens)
            table = row.tables[group]
            first = sequences[row.rid].tables[group].first
            if first > pool.spec.first_seen(row.start):
                raise InvariantError(f"row {row.rid} sees blocks that were given back")
            if len(table) != books.tables.blocks_for(end):
                raise InvariantError(f"row {row.rid}: its table does not fit its positions")
            for position in range(max(row.start, row.write_from), end):
                block = table[position // config.block_size]
                slot = (block, position % config.block_size)
                if slot in written:
                    raise InvariantError(f"slot {slot} is written by two rows")
                if position // config.block_size < first:
                    raise InvariantError(f"row {row.rid} writes where it gave a block back")
                if pool.refs(block) != 1 or pool.hash_of(block) is not None:
                    raise InvariantError(f"row {row.rid} writes block {block}, which is shared")
                written.add(slot)


class Endings:
    """Sees all outputs; every choice ends once, and nothing follows."""

    def __init__(self) -> None:
        self._ended: set[tuple[str, int]] = set()

    def __len__(self) -> int:
        return len(self._ended)

    def see(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            key = (output.request_id, output.choice)
            if key in self._ended:
                raise InvariantError(f"{key} goes on after its end")
            if output.finish_reason is not None:
                self._ended.add(key)
