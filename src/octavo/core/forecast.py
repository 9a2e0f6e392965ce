"""The predicted use of blocks, for one step's admissions.

Owns: what is counted for each running sequence in each KV group, and the verdict on a candidate.
Does not know: the formula and the quantiles (admission), or the order of the queue (planner).

Built when the first candidate of a step is looked at, and carried on as candidates are taken, so
that admitting many in one step does not count the running ones anew for each.

In a group with a window a sequence grows until it holds a window's blocks (`span`), and then no
more. One that will outgrow its window is counted at its span from the start and for good; one that
will end before is counted as in full attention. Chunks of long prompts come on top for a step:
their blocks are there before those that they push out of the window are given back.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection

from octavo.core.admission import peak_blocks
from octavo.core.lifecycle import Lifecycle
from octavo.core.sequence import Sequence


class Forecast:
    """`caution` as in `OutputLengths.remaining`: how often the candidate was preempted for want of
    blocks. `without`: what it would be if these running sequences were gone."""

    def __init__(self, books: Lifecycle, caution: int, without: Collection[Sequence] = ()) -> None:
        self.caution = caution
        self._books = books
        self._groups = [_GroupForecast(books, group) for group in range(len(books.tables.pools))]
        gone = {sequence.rid for sequence in without}
        self._idle = len(books.running) <= len(gone)
        for sequence in books.running:
            if sequence.rid in gone:
                for group in self._groups:
                    group.leave(sequence)
                continue
            remaining = self._remaining(sequence)
            for group in self._groups:
                group.count(sequence, remaining)
        for group in self._groups:
            group.members.sort()

    def admit(self, candidate: Sequence, hits: int) -> bool:
        """Whether the candidate, with `hits` cached blocks, fits now and at the predicted peak.

        If so it is counted from here on. Where nothing runs it needs to fit only now: it must
        begin at some time, and no more room than this will come.
        """
        remaining = self._remaining(candidate)
        first = self._idle
        self._idle = False
        before = [group.state() for group in self._groups]
        for group in self._groups:
            if not group.add(candidate, hits, remaining) or not (
                first or group.peak(self.caution > 1) <= group.total
            ):
                for counted, state in zip(self._groups, before, strict=True):
                    counted.restore(*state)
                self._idle = first
                return False
        return True

    def _remaining(self, sequence: Sequence) -> int:
        most = sequence.limit - sequence.prompt_len
        return self._books.lengths.remaining(sequence.outputs, most, self.caution)


class _GroupForecast:
    """The forecast of one KV group."""

    def __init__(self, books: Lifecycle, group: int) -> None:
        pool = books.tables.pools[group]
        self.total = pool.total
        self.members: list[tuple[int, int]] = []
        self._tables = books.tables
        self._group = group
        self._span = pool.spec.span
        self._size = books.config.block_size
        self._budget = books.config.max_num_batched_tokens
        self._held = pool.held
        """Blocks held now, those promised to running prompts and windows, and those that forks
        will copy."""
        self._prompts = 0
        """Tokens to be computed of prompts that are longer than the window."""

    def state(self) -> tuple[int, int, list[tuple[int, int]]]:
        return self._held, self._prompts, self.members.copy()

    def restore(self, held: int, prompts: int, members: list[tuple[int, int]]) -> None:
        self._held, self._prompts, self.members = held, prompts, members

    def count(self, sequence: Sequence, remaining: int) -> None:
        """A running sequence."""
        needs = min(-(-sequence.known // self._size), self._span)
        table = sequence.tables[self._group]
        self._held += max(0, needs - len(table) + table.first)
        exclusive = max(0, needs - self._tables.shared_prefix(sequence.tables, self._group))
        self._foresee(sequence, exclusive, remaining, sequence.known - sequence.start)

    def leave(self, sequence: Sequence) -> None:
        """A running sequence that would be gone; blocks that others share stay."""
        table = sequence.tables[self._group]
        shared = self._tables.shared_prefix(sequence.tables, self._group)
        self._held -= len(table) - table.first - shared

    def add(self, candidate: Sequence, hits: int, remaining: int) -> bool:
        """Counts it too, unless it does not fit even now (then nothing changes)."""
        tables, known = self._tables, len(candidate.tokens)
        start = tables.resume_at(hits, known)
        taken = hits - tables.pools[self._group].spec.first_seen(start)
        new = min(tables.blocks_for(known), self._span) - taken
        unheld = tables.unheld_hits(self._group, candidate.hashes, hits, known)
        if self._held + new + unheld > self.total:
            return False
        self._held += new + unheld
        self._foresee(candidate, new, remaining, known - start)
        return True

    def peak(self, cautious: bool) -> int:
        chunk = -(-min(self._budget, self._prompts) // self._size)
        return chunk + peak_blocks(self.members, self._held, self._size, cautious)

    def _foresee(self, sequence: Sequence, exclusive: int, remaining: int, todo: int) -> None:
        """Count a sequence with `todo` tokens to compute, and the choices that will fork off it."""
        live, size = sequence.live, self._size
        forks = len(live.forks) if live.leader is sequence else 0
        end = -(-(sequence.known + remaining) // size)
        if end > self._span:
            self._held += self._span - exclusive + forks * self._span
            if todo > 1:
                self._prompts += todo
            return
        insort(self.members, (remaining, exclusive))
        if forks:
            copied = int(sequence.prompt_len % size > 0)
            self._held += copied * forks
            for _ in range(forks):
                insort(self.members, (remaining, copied))
