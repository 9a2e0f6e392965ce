"""What the scheduler knows of a tier: blocks outside the pool, found by KV group and chain hash.

Owns: which blocks are to be stored, which are on their way in, and who waits for them.
Does not know: where a tier keeps its blocks, or what is in them.

    commit publishes a block --> pending --> Store in a plan           (as many as the tier takes)
    a waiting sequence whose next blocks the tier has --> blocks taken, Load in a plan
        --> finished: published, given back as cached, whoever waited is looked at anew

A block is stored after it was published: its content changes no more, and the executor copies it
before any write of the step, so that a store never races the compute. What is evicted before its
turn is lost. The blocks of a load are held here until the last of them is finished; then they are
cached content like any other, and the sequence that waits hits them as usual. A block that did not
arrive is computed. A sequence asks once for each time that it waits, so that nothing goes round in
circles when the pool is too small to keep what was loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from octavo.core.plan import FinishedLoad, Load, Store
from octavo.core.sequence import Sequence
from octavo.core.tables import Tables

Key = tuple[int, bytes]
"""KV group and chain hash. The hash is keyed with the numerics fingerprint (prefix)."""


class Tier(Protocol):
    """What the scheduler asks of a tier; it never blocks."""

    @property
    def active(self) -> bool:
        """False: it takes nothing any more."""
        ...

    def contains(self, group: int, content: bytes) -> bool:
        """Whether the block could be loaded, as far as is known."""
        ...

    def room(self) -> int:
        """How many blocks it takes now without falling behind."""
        ...

    def clear(self) -> None:
        """Forget all blocks."""
        ...


@dataclass(slots=True, eq=False)
class Loading:
    """Blocks of one prefix on their way in. `held` are the blocks of each group that are kept
    meanwhile, those that were cached already among them."""

    held: list[list[int]]
    coming: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    """By transfer: group, block, content."""
    waiters: dict[int, Sequence] = field(default_factory=dict)
    valid: bool = True
    """False once the cache was reset: what arrives is not published."""


class TierBook:
    """Does nothing where there is no tier."""

    def __init__(self, tables: Tables, tier: Tier | None) -> None:
        self.tier = tier
        self.hits = 0
        """Blocks asked of the tier."""
        self.misses = 0
        """Full blocks of admitted sequences that neither the pool nor the tier had."""
        self.loaded = 0
        self._tables = tables
        self._pending: dict[Key, None] = {}
        self._coming: dict[Key, Loading] = {}
        self._by_id: dict[int, Loading] = {}
        self._waiting: dict[int, Loading] = {}
        self._next_id = 0

    def __len__(self) -> int:
        """How many sequences wait for blocks."""
        return len(self._waiting)

    @property
    def batch(self) -> int:
        """How many of them are of the batch class."""
        return sum(load.waiters[rid].batch for rid, load in self._waiting.items())

    @property
    def loading(self) -> bool:
        """Whether blocks are on their way in."""
        return bool(self._by_id)

    @property
    def storing(self) -> bool:
        """Whether published blocks are not stored yet."""
        return bool(self._pending)

    def held(self, group: int) -> list[int]:
        """The blocks of a group that are held here, for the invariants."""
        loads = {id(load): load for load in self._by_id.values()}
        return [block for load in loads.values() for block in load.held[group]]

    # ---- out ----------------------------------------------------------------------------------

    def published(self, content: bytes) -> None:
        """A block can be found from now on, in every group."""
        if self.tier is not None and self.tier.active:
            for group in range(len(self._tables.pools)):
                self._pending[group, content] = None

    def stores(self) -> list[Store]:
        """What is to be copied out in the next plan, before anything in it is written."""
        found: list[Store] = []
        if self.tier is None or not self._pending:
            return found
        if not self.tier.active:
            self._pending.clear()
            return found
        room = self.tier.room()
        while self._pending and len(found) < room:
            key = next(iter(self._pending))
            del self._pending[key]
            group, content = key
            block = self._tables.pools[group].lookup(content)
            if block is not None and not self.tier.contains(group, content):
                found.append(Store(group, block, content))
        # What was evicted since is dropped before the backlog outgrows the pools.
        if len(self._pending) > 2 * sum(pool.total for pool in self._tables.pools):
            pools = self._tables.pools
            self._pending = {k: None for k in self._pending if pools[k[0]].lookup(k[1]) is not None}
        return found

    # ---- in -----------------------------------------------------------------------------------

    def fetch(self, sequence: Sequence, full: int, hits: int) -> list[Load] | None:
        """Begin to load what the sequence (with `full` full blocks, `hits` of them cached) could
        hit besides, or join those who wait for it. None where it need not wait.

        Raises nothing where the pool has too little room: then it does not wait either.
        """
        tier, tables = self.tier, self._tables
        if tier is None or hits >= full:
            return None
        known = len(sequence.tokens)
        found = tables.hits(sequence.hashes, full, known, self._has)
        if found <= hits:
            return None
        firsts = [
            pool.spec.first_seen(tables.resume_at(found, known)) for pool in self._tables.pools
        ]
        wanted = [
            (group, content)
            for group, pool in enumerate(tables.pools)
            for content in sequence.hashes[firsts[group] : found]
            if pool.lookup(content) is None
        ]
        for key in wanted:
            if key in self._coming:
                self._wait(sequence, self._coming[key])
                return []
        if sequence.fetched or not self._room(sequence, firsts, found, wanted):
            return None
        sequence.fetched = True
        return self._begin(sequence, firsts, found)

    def _has(self, group: int, content: bytes) -> bool:
        return (group, content) in self._coming or (
            self.tier is not None and self.tier.contains(group, content)
        )

    def _room(self, sequence: Sequence, firsts: list[int], found: int, wanted: list[Key]) -> bool:
        for group, pool in enumerate(self._tables.pools):
            cached = (pool.lookup(content) for content in sequence.hashes[firsts[group] : found])
            unheld = sum(block is not None and pool.refs(block) == 0 for block in cached)
            if pool.available < unheld + sum(of == group for of, _ in wanted):
                return False
        return True

    def _begin(self, sequence: Sequence, firsts: list[int], found: int) -> list[Load]:
        load = Loading([[] for _ in firsts])
        loads: list[Load] = []
        pools = self._tables.pools
        places = [
            (group, content, pools[group].lookup(content))
            for group, first in enumerate(firsts)
            for content in sequence.hashes[first:found]
        ]
        # First what is there, lest it be evicted for what is to come.
        for group, _, block in places:
            if block is not None:
                pools[group].acquire(block)
        for group, content, block in places:
            if block is None:
                block = pools[group].allocate()
                loads.append(Load(self._next_id, group, block, content))
                load.coming[self._next_id] = (group, block, content)
                self._by_id[self._next_id] = self._coming[group, content] = load
                self._next_id += 1
            load.held[group].append(block)
        self.hits += len(loads)
        self._wait(sequence, load)
        return loads

    def _wait(self, sequence: Sequence, load: Loading) -> None:
        load.waiters[sequence.rid] = sequence
        self._waiting[sequence.rid] = load

    def leave(self, sequence: Sequence) -> None:
        """It waits no longer (it is finished); its blocks arrive all the same."""
        load = self._waiting.pop(sequence.rid, None)
        if load is not None:
            del load.waiters[sequence.rid]

    def finished(self, transfers: Iterable[FinishedLoad]) -> list[Sequence]:
        """Loads that succeeded or failed; who waits no longer, in the order in which they came."""
        woken: list[Sequence] = []
        for transfer in transfers:
            load = self._by_id.pop(transfer.id, None)
            if load is None:
                continue
            group, block, content = load.coming.pop(transfer.id)
            del self._coming[group, content]
            if transfer.ok:
                self.loaded += 1
                if load.valid:
                    self._tables.pools[group].publish(block, content)
            if not load.coming:
                for pool, blocks in zip(self._tables.pools, load.held, strict=True):
                    pool.release(blocks)
                woken += load.waiters.values()
                for sequence in load.waiters.values():
                    del self._waiting[sequence.rid]
        return woken

    def reset(self) -> None:
        """Forget everything that could be hit."""
        self._pending.clear()
        for load in self._by_id.values():
            load.valid = False
        if self.tier is not None:
            self.tier.clear()
