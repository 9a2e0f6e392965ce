"""The predicted use of blocks, for one step's admissions.

Owns: what is counted for each running sequence, and the verdict on a candidate.
Does not know: the formula and the quantiles (admission), or the order of the queue (planner).

Built when the first candidate of a step is looked at, and carried on as candidates are taken, so
that admitting many in one step does not count the running ones anew for each.
"""

from __future__ import annotations

from bisect import insort

from octavo.core.admission import peak_blocks
from octavo.core.lifecycle import Lifecycle
from octavo.core.sequence import Sequence


class Forecast:
    """`caution` as in `OutputLengths.remaining`: how often the candidate was preempted."""

    def __init__(self, books: Lifecycle, caution: int) -> None:
        self.caution = caution
        self._books = books
        self._tables = books.tables
        self._held = self._tables.held
        """Blocks held now, those promised to running prompts and those that forks will copy."""
        self._members: list[tuple[int, int]] = []
        for sequence in books.running:
            needs = self._tables.blocks_for(sequence.known)
            self._held += max(0, needs - len(sequence.tables[0]))
            exclusive = needs - self._tables.shared_prefix(sequence.tables)
            self._foresee(sequence, max(0, exclusive))
        self._members.sort()

    def admit(self, candidate: Sequence, hits: int) -> bool:
        """Whether the candidate, with `hits` cached blocks, fits now and at the predicted peak.

        If so it is counted from here on. Where nothing runs it needs to fit only now: it must
        begin at some time, and no more room than this will come.
        """
        tables = self._tables
        new = tables.blocks_for(len(candidate.tokens)) - hits
        held = self._held + new + tables.unheld_hits(candidate.hashes, hits)
        if held > tables.capacity:
            return False
        before = self._held, self._members.copy()
        self._held = held
        self._foresee(candidate, new)
        size, cautious = self._books.config.block_size, self.caution > 1
        first = not self._books.running
        if first or peak_blocks(self._members, self._held, size, cautious) <= tables.capacity:
            return True
        self._held, self._members = before
        return False

    def _foresee(self, sequence: Sequence, exclusive: int) -> None:
        """Count a sequence, and the choices that will fork off it."""
        most = sequence.limit - sequence.prompt_len
        remaining = self._books.lengths.remaining(sequence.outputs, most, self.caution)
        insort(self._members, (remaining, exclusive))
        live = sequence.live
        if live.leader is sequence and live.forks:
            copied = int(sequence.prompt_len % self._books.config.block_size > 0)
            self._held += copied * len(live.forks)
            for _ in live.forks:
                insort(self._members, (remaining, copied))
