"""Which rows a step has: running sequences first, then waiting ones, within the budgets.

Owns: the choice of rows, of victims, and of who is admitted.
Does not know: results (commit), or what a row costs to compute.

One pass over the running sequences in the policy's order. Every decodable one (a single token to
do) has its token of the budget set aside, so that a long prefill, wherever it stands in the order,
never keeps a sequence from decoding. Where blocks run short the last in the order gives way, unless
it has its row already; a sequence that is itself the last one skips the step and keeps its blocks.
Then the head of the queue is admitted while rows, tokens and the predicted peak of blocks allow. It
is not overtaken when memory holds it up, so nobody starves; only those that wait for another's
prefix are stepped over, `LOOKAHEAD` at most a step, so the cost does not grow with the queue.
"""

from __future__ import annotations

from octavo.core.events import EventKind
from octavo.core.forecast import Forecast
from octavo.core.lifecycle import Lifecycle
from octavo.core.plan import StepPlan
from octavo.core.prefix import extend_hashes
from octavo.core.request import FinishReason
from octavo.core.rows import place_row
from octavo.core.sequence import Sequence, State, Wait

LOOKAHEAD = 16
"""How many waiting sequences a step may step over."""
MAX_PARKED = 1024
"""How many may be parked at a time; beyond it the queue waits for the prefix as a whole."""


class Planner:
    def __init__(self, books: Lifecycle) -> None:
        self._books = books
        self._config = books.config
        self._tables = books.tables
        self._short = False
        """A running sequence lacked blocks in this step: nobody is admitted."""
        self._forecast: Forecast | None = None

    def fill(self, plan: StepPlan, alone: bool, now: float) -> None:
        """Add the rows of the requests that must (`alone`) or need not be by themselves."""
        self._short = False
        self._forecast = None
        budget = self._running_rows(plan, alone)
        if not self._short:
            self._waiting_rows(plan, alone, budget, now)

    # ---- running ------------------------------------------------------------------------------

    def _running_rows(self, plan: StepPlan, alone: bool) -> int:
        """Returns the tokens left of the budget."""
        budget = self._config.max_num_batched_tokens
        ready = [
            (sequence, todo)
            for sequence in self._books.running
            if sequence.alone is alone and not sequence.yields and (todo := sequence.todo) > 0
        ]
        set_aside = sum(todo == 1 for _, todo in ready)
        for sequence, todo in ready:
            set_aside -= todo == 1
            if sequence.state is not State.RUNNING or sequence.yields:
                continue
            count = self._within_prompt(sequence, min(todo, budget - set_aside))
            if count > 0:
                count = self._with_blocks(plan, sequence, count)
            if count > 0:
                place_row(self._books, plan, sequence, count)
                budget -= count
        return budget

    @staticmethod
    def _within_prompt(sequence: Sequence, count: int) -> int:
        """A row that scores the prompt does not reach beyond it."""
        if sequence.scores_prompt and sequence.start < sequence.prompt_len:
            return min(count, sequence.prompt_len - sequence.start)
        return count

    def _with_blocks(self, plan: StepPlan, sequence: Sequence, count: int) -> int:
        """How many of `count` tokens have blocks; preempts others for them where it must."""
        tables = self._tables
        first = max(sequence.start, sequence.write_from)
        end = sequence.start + count
        while tables.lacking(sequence.tables, first, end) > 0:
            books = self._books
            if not books.yielding and not books.lingering and not books.tier.loading:
                victim = self._victim(plan, sequence)
                if victim is not None and not victim.rows_in_flight:
                    self._books.preempt(victim)
                    continue
                if victim is not None:
                    self._books.yield_later(victim)
                elif len(self._books.running) == 1 and not sequence.rows_in_flight:
                    self._short = True
                    return self._last_tokens(sequence, first, end)
            self._short = True
            return max(0, tables.fitting(sequence.tables, first, end) - sequence.start)
        return count

    def _victim(self, plan: StepPlan, requester: Sequence) -> Sequence | None:
        """The last in the order without a row in this step, if it comes after the requester."""
        for sequence in reversed(self._books.running):
            if sequence is requester:
                return None
            if sequence.planned_step != plan.step and sequence.tables[0]:
                return sequence
        return None

    def _last_tokens(self, sequence: Sequence, first: int, end: int) -> int:
        """It runs alone and nobody can give way: what still fits, or its end."""
        fits = self._tables.fitting(sequence.tables, first, end) - sequence.start
        if fits <= 0:
            self._books.ready.append(self._books.finish(sequence, FinishReason.LENGTH))
        return max(0, fits)

    # ---- waiting ------------------------------------------------------------------------------

    def _waiting_rows(self, plan: StepPlan, alone: bool, budget: int, now: float) -> None:
        books = self._books
        queue = books.alone_queue if alone else books.queue
        steps_over = LOOKAHEAD
        while budget > 0 and steps_over > 0:
            sequence = queue.peek()
            if sequence is None:
                return
            if len(books.running) >= self._config.max_running:
                sequence.wait = Wait.ROWS
                return
            books.counters.looks += 1
            taken = self._admit(plan, sequence, budget, now)
            if sequence.state is State.WAITING:
                return
            steps_over -= not taken
            budget -= taken

    def _admit(self, plan: StepPlan, sequence: Sequence, budget: int, now: float) -> int:
        """Begin the sequence, park it, end it, or leave it; returns the tokens of its row."""
        books, tables = self._books, self._tables
        known, size = len(sequence.tokens), self._config.block_size
        if known > tables.longest:
            # It filled the whole pool before it was preempted, and needs one block more.
            books.ready.append(books.finish(sequence, FinishReason.LENGTH))
            return 0
        full, hits = known // size, 0
        if self._config.enable_prefix_caching:
            extend_hashes(sequence.hashes, sequence.live.root, sequence.tokens, size)
            if not sequence.scores_prompt:
                hits = tables.hits(sequence.hashes, full, known)
                owner = books.dedup.owner(sequence.hashes[hits]) if hits < full else None
                if owner is not None and len(books.dedup) >= MAX_PARKED:
                    sequence.wait = Wait.PREFIX
                    return 0
                if owner is not None:
                    books.park(sequence, owner, hits)
                    return 0
        start = tables.resume_at(hits, known)
        count = self._within_prompt(sequence, min(known - start, budget))
        if not self._fits(sequence, hits):
            sequence.wait = Wait.MEMORY
            return 0
        if tables.windowed:
            # Windows are promised what they hold at most, which others may still be giving back.
            count = min(count, tables.room_after(sequence.hashes, hits, known) - start)
            if count <= 0:
                sequence.wait = Wait.MEMORY
                return 0
        if not sequence.scores_prompt:
            loads = books.load(sequence, full, hits)
            if loads is not None:
                plan.transfers += loads
                return 0
            if books.tier.tier is not None:
                books.tier.misses += full - hits
        books.take(sequence)
        tables.adopt(sequence.tables, sequence.hashes, hits, known)
        sequence.published = hits
        sequence.computed = start
        sequence.write_from = hits * size if hits * size == known else 0
        if self._config.enable_prefix_caching:
            books.dedup.own(sequence, hits, full)
        if sequence.live.cached_tokens is None:
            sequence.live.cached_tokens = min(sequence.computed, sequence.prompt_len - 1)
        books.emit(EventKind.ADMITTED, sequence, sequence.computed)
        books.begin(sequence, now)
        place_row(books, plan, sequence, count)
        return count

    def _fits(self, candidate: Sequence, hits: int) -> bool:
        if self._forecast is None or self._forecast.caution != candidate.preemptions:
            self._forecast = Forecast(self._books, candidate.preemptions)
        return self._forecast.admit(candidate, hits)
