"""Prefixes that are being computed right now, and who waits for them.

Owns: the map from a block's hash to the running sequence that computes it; the parked waiters.
Does not know: queues, memory, or why an owner stops.

A sequence whose next full block is being computed by another (its owner) is parked until the owner
has published the last block that both have in common. If the owner stops before, its waiters are
handed back: the first that is looked at becomes the owner, the rest park behind it. Owners run and
waiters hold nothing, so that no circle of waiting can arise. A waiter lends its owner its standing
(class and priority).
"""

from __future__ import annotations

from octavo.core.sequence import Sequence


class InFlightPrefixes:
    def __init__(self) -> None:
        self._owners: dict[bytes, Sequence] = {}
        self._parked: dict[bytes, dict[int, Sequence]] = {}
        self._size = 0
        self.batch = 0
        """How many of the parked are of the batch class."""

    def __len__(self) -> int:
        """How many are parked."""
        return self._size

    def owner(self, content: bytes) -> Sequence | None:
        """Who computes this block now."""
        return self._owners.get(content)

    def own(self, sequence: Sequence, first: int, end: int) -> None:
        """`sequence` computes its full blocks `first ..< end` (those that nobody else does)."""
        for content in sequence.hashes[first:end]:
            self._owners.setdefault(content, sequence)

    def park(self, waiter: Sequence, owner: Sequence, index: int) -> None:
        """`waiter` waits for the last block from `index` on that it has in common with `owner`."""
        last = index
        end = min(len(waiter.hashes), len(owner.hashes))
        while last + 1 < end and self._same(waiter, owner, last + 1):
            last += 1
        content = waiter.hashes[last]
        self._parked.setdefault(content, {})[waiter.rid] = waiter
        self._size += 1
        self.batch += waiter.batch
        waiter.owner, waiter.awaited = owner, content
        owner.waiters[waiter.rid] = waiter
        best = waiter.standing
        owner.lent = best if owner.lent is None else min(owner.lent, best)

    def unpark(self, waiter: Sequence) -> None:
        """The waiter waits no longer (it is finished); nothing happens if it does not wait."""
        owner = waiter.owner
        if owner is not None:
            self._drop(waiter)
            _lend(owner)

    def published(self, content: bytes) -> list[Sequence]:
        """A block can be found from now on: who waited for it, in order of parking."""
        self._owners.pop(content, None)
        return self._wake(content)

    def stop(self, owner: Sequence) -> list[Sequence]:
        """The owner computes no more: everyone who waited for one of its blocks."""
        woken: list[Sequence] = []
        for content in owner.hashes[owner.published :]:
            if self._owners.get(content) is owner:
                del self._owners[content]
                woken += self._wake(content)
        return woken

    def _same(self, waiter: Sequence, owner: Sequence, index: int) -> bool:
        content = waiter.hashes[index]
        return content == owner.hashes[index] and self._owners.get(content) is owner

    def _wake(self, content: bytes) -> list[Sequence]:
        woken = list(self._parked.get(content, {}).values())
        owners = {waiter.owner.rid: waiter.owner for waiter in woken if waiter.owner is not None}
        for waiter in woken:
            self._drop(waiter)
        for owner in owners.values():
            _lend(owner)
        return woken

    def _drop(self, waiter: Sequence) -> None:
        owner, content = waiter.owner, waiter.awaited
        if owner is None or content is None:
            return
        waiter.owner = waiter.awaited = None
        self._size -= 1
        self.batch -= waiter.batch
        group = self._parked[content]
        del group[waiter.rid]
        if not group:
            del self._parked[content]
        del owner.waiters[waiter.rid]


def _lend(owner: Sequence) -> None:
    """The owner's lent standing is the best of those that still wait for it."""
    owner.lent = min((waiter.standing for waiter in owner.waiters.values()), default=None)
