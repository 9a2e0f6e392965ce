"""Block tables over the pools of all KV groups: growth, sharing, copy-on-write.

Owns: the pools, and every change to a sequence's tables.
Does not know: requests, policies, or steps.

A table lists the blocks of positions 0, 1, 2 ... of one sequence in one group. A block is written
only by a sequence that alone holds it and only while it is not findable by hash; the first write
into a shared, partly filled block copies it.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.blocks import BlockPool, GroupSpec
from octavo.core.plan import Copy

Table = tuple[list[int], ...]


class Tables:
    def __init__(self, groups: Sequence[GroupSpec]) -> None:
        self.pools = [BlockPool(spec) for spec in groups]
        self.block_size = groups[0].block_size
        self.capacity = min(pool.total for pool in self.pools)
        """Blocks that one sequence could hold in every group, if it were alone."""

    def empty(self) -> Table:
        return tuple([] for _ in self.pools)

    @property
    def available(self) -> int:
        return min(pool.available for pool in self.pools)

    @property
    def held(self) -> int:
        """Held blocks of the fullest group."""
        return max(pool.held for pool in self.pools)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def hits(self, hashes: Sequence[bytes], limit: int) -> int:
        """How many leading hashes (at most `limit`) are cached in every group."""
        for index in range(limit):
            if any(pool.lookup(hashes[index]) is None for pool in self.pools):
                return index
        return limit

    def unheld_hits(self, hashes: Sequence[bytes], hits: int) -> int:
        """How many of these hits lie in cached blocks: to share one takes it from the available."""
        return max(
            sum(pool.refs(_present(pool, hashes[i])) == 0 for i in range(hits))
            for pool in self.pools
        )

    def adopt(self, tables: Table, hashes: Sequence[bytes], hits: int) -> None:
        """Begin empty tables with the cached blocks of these hashes."""
        for pool, table in zip(self.pools, tables, strict=True):
            for content in hashes[:hits]:
                block = _present(pool, content)
                pool.acquire(block)
                table.append(block)

    def share(self, source: Table, tokens: int) -> Table:
        """New tables that share the source's blocks of the first `tokens` positions."""
        count = self.blocks_for(tokens)
        shared = tuple(table[:count] for table in source)
        for pool, table in zip(self.pools, shared, strict=True):
            for block in table:
                pool.acquire(block)
        return shared

    def missing(self, tables: Table, write_from: int, end: int) -> int:
        """Blocks to allocate before positions `write_from ..< end` can be written."""
        extra = self.blocks_for(end) - len(tables[0])
        index = write_from // self.block_size
        if write_from < end and index < len(tables[0]):
            for pool, table in zip(self.pools, tables, strict=True):
                if pool.refs(table[index]) > 1:
                    return extra + 1
        return extra

    def fitting(self, tables: Table, write_from: int, end: int) -> int:
        """The largest end up to `end` that the available blocks allow."""
        lacking = self.missing(tables, write_from, end) - self.available
        if lacking <= 0:
            return end
        room = (self.blocks_for(end) - lacking) * self.block_size
        return room if self.missing(tables, write_from, room) <= self.available else 0

    def grow(self, tables: Table, write_from: int, end: int) -> list[Copy]:
        """Make positions `write_from ..< end` writable; returns the copies that this takes.

        `missing` must not exceed `available`.
        """
        copies: list[Copy] = []
        index = write_from // self.block_size
        for group, (pool, table) in enumerate(zip(self.pools, tables, strict=True)):
            if write_from < end and index < len(table):
                block = table[index]
                if pool.refs(block) > 1:
                    table[index] = pool.allocate()
                    copies.append(Copy(group, block, table[index]))
                    pool.release([block])
                else:
                    pool.unpublish(block)
            for _ in range(self.blocks_for(end) - len(table)):
                table.append(pool.allocate())
        return copies

    def publish(self, tables: Table, index: int, content: bytes) -> None:
        """Make the full block at `index` findable."""
        for pool, table in zip(self.pools, tables, strict=True):
            pool.publish(table[index], content)

    def release(self, tables: Table) -> None:
        """Give all blocks back and empty the tables."""
        for pool, table in zip(self.pools, tables, strict=True):
            pool.release(table)
            table.clear()

    def shared_prefix(self, tables: Table) -> int:
        """About how many leading blocks others hold too, by bisection: sharing is by prefix."""
        pool, table = self.pools[0], tables[0]
        low, high = 0, len(table)
        while low < high:
            middle = (low + high) // 2
            if pool.refs(table[middle]) > 1:
                low = middle + 1
            else:
                high = middle
        return low


def _present(pool: BlockPool, content: bytes) -> int:
    block = pool.lookup(content)
    if block is None:
        raise KeyError("content that was just found is gone")
    return block
