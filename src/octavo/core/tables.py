"""Block tables over the pools of all KV groups: growth, sharing, copy-on-write, sliding windows.

Owns: the pools, and every change to a sequence's tables.
Does not know: requests, policies, or steps.

A table lists the blocks of positions 0, 1, 2 ... of one sequence in one group. A block is written
only by a sequence that alone holds it and only while it is not findable by hash; the first write
into a shared, partly filled block copies it.

In a group with a window, blocks that no later token sees are given back as the sequence advances:

    place    0   1   2   3   4   5         first = 3: what is before it is given back, and the
    block    0   0   0  17   9  21         places keep a 0 that stands for no block. Nothing reads
                         ^--- window --^   it: attention starts at the window; nothing writes it.

All tables of a sequence are equally long, so that place i is positions i * block_size onwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from octavo.core.blocks import UNBOUNDED, BlockError, BlockPool, GroupSpec
from octavo.core.plan import Copy


class BlockTable(list[int]):
    """The blocks of one sequence in one group, held from index `first` on."""

    __slots__ = ("first",)

    def __init__(self, blocks: Iterable[int] = (), first: int = 0) -> None:
        super().__init__(blocks)
        self.first = first

    def held(self) -> list[int]:
        return self[self.first :]


Table = tuple[BlockTable, ...]
Elsewhere = Callable[[int, bytes], bool]
"""Whether the content of a KV group is to be had from outside the pool."""


class Tables:
    def __init__(self, groups: Sequence[GroupSpec]) -> None:
        self.pools = [BlockPool(spec) for spec in groups]
        self.block_size = groups[0].block_size
        self.capacity = min(pool.total for pool in self.pools)
        """Blocks that one sequence could hold in every group, if it were alone."""
        self.longest = min(spec.longest for spec in groups)
        """Tokens that one sequence could have, if it were alone."""
        self.windowed = any(spec.window for spec in groups)
        """Whether any group has a window."""

    def empty(self) -> Table:
        return tuple(BlockTable() for _ in self.pools)

    @property
    def available(self) -> int:
        return min(pool.available for pool in self.pools)

    @property
    def held(self) -> int:
        """Held blocks of the fullest group."""
        return max(pool.held for pool in self.pools)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def hits(
        self,
        hashes: Sequence[bytes],
        limit: int,
        known: int = UNBOUNDED,
        also: Elsewhere | None = None,
    ) -> int:
        """How many leading hashes (at most `limit`) of a sequence of `known` tokens can be taken
        from the cache: of each group, those that the tokens to be computed see must be there, or
        `also` somewhere else."""
        found = limit
        for group, pool in enumerate(self.pools):
            if not pool.spec.window:
                for index in range(found):
                    content = hashes[index]
                    if pool.lookup(content) is None and not (also and also(group, content)):
                        found = index
                        break
        return self._windowed_hits(hashes, found, known, also) if self.windowed else found

    def _windowed_hits(
        self, hashes: Sequence[bytes], found: int, known: int, also: Elsewhere | None
    ) -> int:
        """The most of `found` hits after which every window lies in cached blocks.

        A block that is missing rules out all that see it, which are those down to its own index.
        """
        pools = [(group, pool) for group, pool in enumerate(self.pools) if pool.spec.window]
        settled = 0
        while settled < len(pools):
            for group, pool in pools:
                first = pool.spec.first_seen(self.resume_at(found, known))
                for index in range(found - 1, first - 1, -1):
                    content = hashes[index]
                    if pool.lookup(content) is None and not (also and also(group, content)):
                        found, settled = index, 0
                        break
                else:
                    settled += 1
        return found

    def resume_at(self, hits: int, known: int) -> int:
        """The first position to compute after so many cached blocks: the last token is computed in
        any case, for its logits."""
        return min(hits * self.block_size, known - 1)

    def unheld_hits(
        self, group: int, hashes: Sequence[bytes], hits: int, known: int = UNBOUNDED
    ) -> int:
        """How many blocks that these hits take in a group lie in cached ones: to share one takes it
        from the available."""
        pool = self.pools[group]
        first = pool.spec.first_seen(self.resume_at(hits, known))
        return sum(pool.refs(_present(pool, hashes[i])) == 0 for i in range(first, hits))

    def adopt(
        self, tables: Table, hashes: Sequence[bytes], hits: int, known: int = UNBOUNDED
    ) -> None:
        """Begin empty tables with the cached blocks of these hashes, those that are still seen."""
        for pool, table in zip(self.pools, tables, strict=True):
            table.first = pool.spec.first_seen(self.resume_at(hits, known))
            table.extend([0] * table.first)
            for content in hashes[table.first : hits]:
                block = _present(pool, content)
                pool.acquire(block)
                table.append(block)

    def room_after(self, hashes: Sequence[bytes], hits: int, known: int) -> int:
        """The most tokens that a sequence could have now that begins with these hits."""
        spare = min(
            pool.available - self.unheld_hits(group, hashes, hits, known)
            for group, pool in enumerate(self.pools)
        )
        return (hits + spare) * self.block_size if spare >= 0 else 0

    def share(self, source: Table, tokens: int) -> Table:
        """New tables that share the source's blocks of the first `tokens` positions, the last of
        which is to be computed again. Raises BlockError where the source gave them back."""
        count = self.blocks_for(tokens)
        shared = []
        for pool, table in zip(self.pools, source, strict=True):
            first = pool.spec.first_seen(tokens - 1)
            if first < table.first:
                raise BlockError(f"block {first} of a sequence was given back before it was shared")
            new = BlockTable([0] * first + table[first:count], first)
            for block in new.held():
                pool.acquire(block)
            shared.append(new)
        return tuple(shared)

    def lacking(self, tables: Table, write_from: int, end: int) -> int:
        """How many blocks too few are available, in the group that lacks the most, to write
        positions `write_from ..< end`; 0 or less where it can be done."""
        blocks = -(-end // self.block_size)
        index = write_from // self.block_size
        worst = -UNBOUNDED
        for pool, table in zip(self.pools, tables, strict=True):
            lacks = blocks - len(table) - pool.available
            if write_from < end and index < len(table) and pool.refs(table[index]) > 1:
                lacks += 1
            if lacks > worst:
                worst = lacks
        return worst

    def fitting(self, tables: Table, write_from: int, end: int) -> int:
        """The largest end up to `end` that the available blocks allow."""
        lacking = self.lacking(tables, write_from, end)
        if lacking <= 0:
            return end
        room = (self.blocks_for(end) - lacking) * self.block_size
        return room if self.lacking(tables, write_from, room) <= 0 else 0

    def grow(self, tables: Table, write_from: int, end: int) -> list[Copy]:
        """Make positions `write_from ..< end` writable; returns the copies that this takes.

        Nothing may be `lacking`.
        """
        copies: list[Copy] = []
        index = write_from // self.block_size
        for group, (pool, table) in enumerate(zip(self.pools, tables, strict=True)):
            if write_from < end and index < len(table):
                block = table[index]
                if index < table.first:
                    raise BlockError(f"position {write_from} lies in a block that was given back")
                if pool.refs(block) > 1:
                    table[index] = pool.allocate()
                    copies.append(Copy(group, block, table[index]))
                    pool.release([block])
                else:
                    pool.unpublish(block)
            for _ in range(self.blocks_for(end) - len(table)):
                table.append(pool.allocate())
        return copies

    def slide(self, tables: Table, computed: int) -> int:
        """Give back the blocks that no token from position `computed` on sees; returns how many
        of them nobody holds any more."""
        reclaimed = 0
        for pool, table in zip(self.pools, tables, strict=True):
            first = pool.spec.first_seen(computed)
            if first > table.first:
                gone = slice(table.first, first)
                reclaimed += pool.release(table[gone])
                table[gone] = [0] * (first - table.first)
                table.first = first
        return reclaimed

    def publish(self, tables: Table, index: int, content: bytes) -> None:
        """Make the full block at `index` findable."""
        for pool, table in zip(self.pools, tables, strict=True):
            pool.publish(table[index], content)

    def release(self, tables: Table) -> int:
        """Give all blocks back and empty the tables; returns how many of the blocks nobody holds
        any more."""
        reclaimed = 0
        for pool, table in zip(self.pools, tables, strict=True):
            reclaimed += pool.release(table.held())
            table.clear()
            table.first = 0
        return reclaimed

    def shared_prefix(self, tables: Table, group: int = 0) -> int:
        """About how many leading blocks others hold too, by bisection: sharing is by prefix."""
        pool, table = self.pools[group], tables[group]
        low, high = table.first, len(table)
        while low < high:
            middle = (low + high) // 2
            if pool.refs(table[middle]) > 1:
                low = middle + 1
            else:
                high = middle
        return low - table.first


def _present(pool: BlockPool, content: bytes) -> int:
    block = pool.lookup(content)
    if block is None:
        raise KeyError("content that was just found is gone")
    return block
