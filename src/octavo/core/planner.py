"""Which rows a step has: first of realtime work, then of batch work.

Owns: the choice of rows, of victims, and of who is admitted.
Does not know: results (commit), or what a row costs to compute.

    make way    batch rows give their places to waiting realtime requests (way)
    realtime    its running rows, then its queue
    batch       its running rows, then its queue, with the tokens that are left

One pass over the running sequences of a class in the policy's order. Every decodable one (a single
token to do), of either class, has its token of the budget set aside, so that a long prefill,
wherever it stands in the order, never keeps a sequence from decoding. Where blocks run short the
last in the order gives way, unless it has its row already; a sequence that is itself the last one
skips the step and keeps its blocks. Then the head of the queue is admitted while rows, tokens and
the predicted peak of blocks allow. It is not overtaken when memory holds it up, so nobody starves;
only those that wait for another's prefix are stepped over, `LOOKAHEAD` at most a step, so the cost
does not grow with the queue.

What batch work has for certain (share): tokens kept free for its prompts, and, where realtime
requests take every row, a sheltered row. In a step that computes a realtime prompt, batch prompts
have half of the budget at most: such a prompt waits for the end of one full step when it comes, and
its own step is to be shorter than that.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.events import EventKind
from octavo.core.forecast import Forecast
from octavo.core.lifecycle import Lifecycle
from octavo.core.plan import StepPlan
from octavo.core.request import FinishReason
from octavo.core.rows import place_row
from octavo.core.sequence import Sequence, State, Wait
from octavo.core.share import BatchShare
from octavo.core.stats import Cause
from octavo.core.waiting import WaitingQueue
from octavo.core.way import LOOKAHEAD, find_hits, make_way

MAX_PARKED = 1024
"""How many may be parked at a time; beyond it the queue waits for the prefix as a whole."""

Ready = list[tuple[Sequence, int]]
"""Running sequences with the tokens that each could compute now."""


@dataclass(slots=True)
class Budget:
    """The tokens of one step."""

    total: int
    left: int
    decodes: int = 0
    """Set aside for decodable rows that are not placed yet."""
    owed: int = 0
    """Set aside for prompts of the batch class."""
    room: int = 0
    """What prompts of the class that is being placed may still have."""
    hurried: bool = False
    """A realtime prompt is in the step."""
    filling: int = 0
    """Tokens of batch rows."""
    sheltered: int = 0
    """Tokens of batch rows that are sheltered."""

    @property
    def for_prompt(self) -> int:
        return min(self.left - self.decodes - self.owed, self.room)


class Planner:
    def __init__(self, books: Lifecycle) -> None:
        self._books = books
        self._config = books.config
        self._tables = books.tables
        self._short = False
        """A running sequence lacked blocks in this step: nobody is admitted."""
        self._forecast: Forecast | None = None
        self.share = BatchShare(
            self._config.batch_share, self._config.max_running, self._config.max_num_batched_tokens
        )

    def fill(self, plan: StepPlan, alone: bool, now: float) -> None:
        """Add the rows of the requests that must (`alone`) or need not be by themselves."""
        self._short = False
        self._forecast = None
        budget = self._budget()
        if alone:
            budget.room = budget.left
            self._running_rows(plan, self._ready(budget, alone), budget)
            if not self._short:
                self._waiting_rows(plan, self._books.alone_queue, budget, now)
        else:
            self._classes(plan, budget, now)

    def _budget(self) -> Budget:
        """A small limit leaves every running sequence its token, and prompts a block's worth."""
        least = len(self._books.running) + self._config.block_size
        most = self._config.max_num_batched_tokens
        tokens = min(most, max(self._books.limits.tokens, least))
        return Budget(tokens, tokens)

    # ---- classes ------------------------------------------------------------------------------

    def _classes(self, plan: StepPlan, budget: Budget, now: float) -> None:
        books, share = self._books, self.share
        due = self._due()
        if not due:
            make_way(books)
        self._both(plan, budget, now, max(0, share.credit), due)
        if not plan.rows:
            # What is owed could not be paid, for want of blocks: then it keeps nobody from running.
            self._short = False
            self._forecast = None
            self._both(plan, budget, now, 0, False)
        wanted = books.waiting_batch > 0 or any(sequence.batch for sequence in books.running)
        share.settle(budget.total - budget.left, budget.filling, budget.sheltered, wanted)

    def _both(self, plan: StepPlan, budget: Budget, now: float, credit: int, due: bool) -> None:
        """The rows of realtime work, then those of batch work."""
        books = self._books
        ready = self._ready(budget, alone=False)
        realtime: Ready = []
        batch: Ready = []
        for one in ready:
            (batch if one[0].rank else realtime).append(one)
        owed = min(credit, budget.left - budget.decodes)
        prompts = sum(todo for _, todo in batch if todo > 1)
        budget.owed = owed if due else min(owed, prompts)

        budget.room = budget.left
        self._running_rows(plan, realtime, budget)
        clear = not self._short
        if clear and due:
            clear = self._shelter(plan, budget, now)
        clear = clear and self._waiting_rows(plan, books.queue, budget, now)

        budget.owed, budget.room = 0, budget.left
        if budget.hurried:
            half = budget.total // 2
            budget.room = max(credit, half - budget.decodes)
        self._running_rows(plan, batch, budget)
        if clear and not self._short:
            self._waiting_rows(plan, books.batch_queue, budget, now)

    def _due(self) -> bool:
        """Whether a batch row must be let in before the realtime requests that wait."""
        books = self._books
        return (
            self.share.credit >= 1
            and len(books.batch_queue) > 0
            and len(books.queue) > 0
            and sum(sequence.sheltered for sequence in books.running) < self.share.rows
        )

    def _shelter(self, plan: StepPlan, budget: Budget, now: float) -> bool:
        """Let in batch rows that are due. False where one is held up: it is not overtaken."""
        owed, budget.owed = budget.owed, 0
        room, budget.room = budget.room, max(1, owed)
        clear = True
        while clear and self._due() and budget.for_prompt > 0:
            clear = self._waiting_rows(plan, self._books.batch_queue, budget, now, shelter=True)
        budget.room = room
        return clear

    # ---- running ------------------------------------------------------------------------------

    def _ready(self, budget: Budget, alone: bool) -> Ready:
        """In the policy's order; sets the tokens of decodable rows aside."""
        ready = [
            (sequence, todo)
            for sequence in self._books.running
            if sequence.alone is alone and not sequence.yields and (todo := sequence.todo) > 0
        ]
        budget.decodes = sum(todo == 1 for _, todo in ready)
        return ready

    def _running_rows(self, plan: StepPlan, ready: Ready, budget: Budget) -> None:
        for sequence, todo in ready:
            budget.decodes -= todo == 1
            if sequence.state is not State.RUNNING or sequence.yields:
                continue
            most = budget.for_prompt if todo > 1 else budget.left - budget.decodes
            count = self._within_prompt(sequence, min(todo, most))
            if count > 0:
                count = self._with_blocks(plan, sequence, count)
            if count > 0:
                self._place(plan, sequence, count, todo > 1, budget)

    def _place(
        self, plan: StepPlan, sequence: Sequence, count: int, prompt: bool, budget: Budget
    ) -> None:
        place_row(self._books, plan, sequence, count)
        budget.left -= count
        if prompt:
            budget.room -= count
            budget.hurried |= not sequence.rank
        if sequence.batch:
            budget.filling += 0 if sequence.sheltered else count
            budget.sheltered += count if sequence.sheltered else 0

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
                    self._books.preempt(victim, Cause.BLOCKS)
                    continue
                if victim is not None:
                    self._books.yield_later(victim, Cause.BLOCKS)
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

    def _waiting_rows(
        self,
        plan: StepPlan,
        queue: WaitingQueue,
        budget: Budget,
        now: float,
        shelter: bool = False,
    ) -> bool:
        """Admit from the head of a queue (one at most, where it is to be sheltered). Whether nobody
        of it is left to be overtaken."""
        books = self._books
        steps_over = LOOKAHEAD
        while steps_over > 0:
            sequence = queue.peek()
            if sequence is None:
                return True
            if budget.for_prompt <= 0:
                return False
            if len(books.running) >= books.limits.rows:
                sequence.wait = Wait.ROWS
                return False
            books.counters.looks += 1
            count = self._admit(plan, sequence, budget.for_prompt, now)
            if sequence.state is State.WAITING:
                return False
            if count:
                sequence.sheltered = shelter
                self._place(plan, sequence, count, True, budget)
                if shelter:
                    return True
            steps_over -= not count
        return False

    def _admit(self, plan: StepPlan, sequence: Sequence, room: int, now: float) -> int:
        """Begin the sequence, park it, end it, or leave it; returns the tokens for its row."""
        books, tables = self._books, self._tables
        known, size = len(sequence.tokens), self._config.block_size
        if known > tables.longest:
            # It filled the whole pool before it was preempted, and needs one block more.
            books.ready.append(books.finish(sequence, FinishReason.LENGTH))
            return 0
        full, hits = known // size, find_hits(books, sequence)
        if self._config.enable_prefix_caching and not sequence.scores_prompt:
            owner = books.dedup.owner(sequence.hashes[hits]) if hits < full else None
            if owner is not None and len(books.dedup) >= MAX_PARKED:
                sequence.wait = Wait.PREFIX
                return 0
            if owner is not None:
                books.park(sequence, owner, hits)
                return 0
        start = tables.resume_at(hits, known)
        count = self._within_prompt(sequence, min(known - start, room))
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
        return count

    def _fits(self, candidate: Sequence, hits: int) -> bool:
        if self._forecast is None or self._forecast.caution != candidate.squeezed:
            self._forecast = Forecast(self._books, candidate.squeezed)
        return self._forecast.admit(candidate, hits)
