"""The block pool of one KV group: who holds which block, and which block is reused next.

Owns: reference counts, the LRU free list, the index from content hash to block.
Does not know: sequences, tokens, or what a block's bytes are.

A block is in one of three conditions:

    held     reference count above 0: it is in the table of at least one sequence
    cached   count 0, but its content is known by hash and can be hit again until it is reused
    free     count 0, content worthless

Cached and free blocks are in one doubly linked list (intrusive: two arrays of block ids), taken
from its head. Free ones enter at the head, cached ones at the tail, so that the least recently used
content is lost last; a table is released in reverse, so that the tail of a chain is lost before its
prefix (the idea is vLLM's). All operations are O(1) a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNBOUNDED = 2**62
"""More blocks or tokens than there can be."""


class BlockError(RuntimeError):
    """The pool was used wrongly: a double free, a block out of range, an empty pool."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One KV group: `num_blocks` blocks of `block_size` tokens each.

    `window` is how many positions its layers see, the token itself included (0: all of them).
    """

    num_blocks: int
    block_size: int
    window: int = 0

    def __post_init__(self) -> None:
        if self.window < 0:
            raise ValueError(f"a KV group's window is {self.window}; it cannot be negative")
        if self.num_blocks < 1 or self.block_size < 1:
            raise ValueError(
                f"a KV group needs at least one block of one token, not "
                f"{self.num_blocks} blocks of {self.block_size}"
            )

    @property
    def span(self) -> int:
        """The most blocks that what one token sees lies in, wherever the token stands."""
        return span_blocks(self.window, self.block_size)

    @property
    def longest(self) -> int:
        """The most tokens that a sequence can have that holds the whole pool. Where the pool holds
        what one token sees, there is no bound: blocks come back as fast as they are taken."""
        return UNBOUNDED if self.num_blocks >= self.span else self.num_blocks * self.block_size

    def first_seen(self, position: int) -> int:
        """The index of the first block that the tokens from `position` on see."""
        return max(0, position - self.window + 1) // self.block_size if self.window else 0


def span_blocks(window: int, block_size: int) -> int:
    """The most blocks in which `window` consecutive tokens lie; UNBOUNDED for a window of 0."""
    return -(-(window - 1) // block_size) + 1 if window else UNBOUNDED


class BlockPool:
    """The blocks `0 ..< spec.num_blocks` of one group."""

    def __init__(self, spec: GroupSpec) -> None:
        n = spec.num_blocks
        self.spec = spec
        self.total = n
        self.evictions = 0
        """How often cached content was lost to reuse."""
        self._refs = [0] * n
        self._hashes: list[bytes | None] = [None] * n
        self._by_hash: dict[bytes, int] = {}
        # Entry n is the sentinel of the circular list: next[n] is its head, previous[n] its tail.
        self._next: list[int] = [*range(1, n + 1), 0]
        self._previous: list[int] = [n, *range(n)]
        self._held = 0
        self._cached = 0

    @property
    def held(self) -> int:
        return self._held

    @property
    def cached(self) -> int:
        return self._cached

    @property
    def free(self) -> int:
        return self.total - self._held - self._cached

    @property
    def available(self) -> int:
        """Blocks that can be allocated now: free and cached ones."""
        return self.total - self._held

    def refs(self, block: int) -> int:
        return self._refs[block]

    def hash_of(self, block: int) -> bytes | None:
        return self._hashes[block]

    def lookup(self, content: bytes) -> int | None:
        """The block that holds this content, or None. It takes no reference."""
        return self._by_hash.get(content)

    def allocate(self) -> int:
        """Take the block at the head of the free list, with one reference and no hash."""
        block = self._next[self.total]
        if block == self.total:
            raise BlockError(f"all {self.total} blocks are held")
        self._unlink(block)
        content = self._hashes[block]
        if content is not None:
            del self._by_hash[content]
            self._hashes[block] = None
            self._cached -= 1
            self.evictions += 1
        self._refs[block] = 1
        self._held += 1
        return block

    def acquire(self, block: int) -> None:
        """Share a held or cached block: one more reference."""
        if self._refs[block] == 0:
            if self._hashes[block] is None:
                raise BlockError(f"block {block} is free: it has no content to share")
            self._unlink(block)
            self._cached -= 1
            self._held += 1
        self._refs[block] += 1

    def release(self, table: Sequence[int]) -> int:
        """Give back one reference to each block of a table, last block first; returns how many
        blocks nobody holds any more.

        Raises BlockError where a block is not held (freed twice); nothing of the rest is touched.
        """
        held = self._held
        for block in reversed(table):
            refs = self._refs[block]
            if refs <= 0:
                raise BlockError(f"block {block} is freed twice")
            self._refs[block] = refs - 1
            if refs == 1:
                self._held -= 1
                if self._hashes[block] is None:
                    self._link(block, self.total)
                else:
                    self._cached += 1
                    self._link(block, self._previous[self.total])
        return held - self._held

    def publish(self, block: int, content: bytes) -> None:
        """Make a held, full block findable. Content that is known already keeps its first block."""
        if self._refs[block] <= 0:
            raise BlockError(f"block {block} is not held: nobody vouches for its content")
        if content not in self._by_hash and self._hashes[block] is None:
            self._by_hash[content] = block
            self._hashes[block] = content

    def unpublish(self, block: int) -> None:
        """Forget a held block's hash: it is about to be written."""
        content = self._hashes[block]
        if content is not None:
            if self._refs[block] == 0:
                raise BlockError(f"block {block} is cached, not held: it cannot be written")
            del self._by_hash[content]
            self._hashes[block] = None

    def reset_cache(self) -> int:
        """Forget all content. Held blocks stay held; returns how many hashes were dropped."""
        dropped = len(self._by_hash)
        for block in self._by_hash.values():
            self._hashes[block] = None
        self._by_hash.clear()
        self._cached = 0
        return dropped

    def free_list(self) -> list[int]:
        """Free and cached blocks in the order in which they would be reused."""
        order: list[int] = []
        block = self._next[self.total]
        while block != self.total:
            order.append(block)
            if len(order) > self.total:
                raise BlockError("the free list has a cycle")
            block = self._next[block]
        return order

    def check(self) -> None:
        """Raise BlockError unless list, counts and index agree. O(blocks), for tests."""
        listed = self.free_list()
        unheld = [block for block in range(self.total) if self._refs[block] == 0]
        if sorted(listed) != unheld:
            raise BlockError("the free list is not the set of blocks without references")
        cached = sum(self._hashes[block] is not None for block in unheld)
        if (cached, self.total - len(unheld)) != (self._cached, self._held):
            raise BlockError("the counts of held and cached blocks are wrong")
        hashed = {c: block for block, c in enumerate(self._hashes) if c is not None}
        if hashed != self._by_hash:
            raise BlockError("the hash index differs from the blocks' hashes")

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before

    def _link(self, block: int, before: int) -> None:
        """Insert `block` after `before` (the sentinel: at the head)."""
        after = self._next[before]
        self._next[before] = block
        self._previous[block] = before
        self._next[block] = after
        self._previous[after] = block
