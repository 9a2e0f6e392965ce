"""How large the pool of each KV group is, all from one number.

Owns: the blocks of every group for a number of blocks of the widest one, and the inverses.
Does not know: budgets, weights, what else takes memory (memory), or who holds a block (blocks).

The widest group (full attention; without it, the longest window) has `num_blocks`. A narrower one
gets what as many typical sequences hold of it as the widest has room for, and a step's tokens on
top; never more than the widest, because nobody holds more of it:

    widest    |== sequence ==|== sequence ==|== sequence ==|      num_blocks
    narrower  |window|window|window|step|                         in proportion

Where all sequences are shorter than the window, all pools are equal. Sequences that are shorter
than the typical one find the windows' pools full first, longer ones the widest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.blocks import UNBOUNDED, span_blocks


@dataclass(frozen=True, slots=True)
class KvGroup:
    """`bytes_per_token` of keys and values in all its layers; `window` 0 is full attention."""

    window: int
    bytes_per_token: int


@dataclass(frozen=True, slots=True)
class KvPools:
    """`typical` is the length of a typical sequence, `step` the most tokens of a step."""

    groups: Sequence[KvGroup]
    block_size: int
    typical: int
    step: int

    @property
    def span(self) -> int:
        """The most blocks of the widest group that what one token sees lies in."""
        return max(span_blocks(group.window, self.block_size) for group in self.groups)

    def sizes(self, num_blocks: int) -> tuple[int, ...]:
        """The blocks of each group. None shrinks as `num_blocks` grows."""
        widest = self.span
        held = max(1, min(self.blocks(self.typical), widest, num_blocks))
        sequences = -(-num_blocks // held)
        found = []
        for group in self.groups:
            span = span_blocks(group.window, self.block_size)
            most = sequences * min(held, span) + self.blocks(self.step)
            found.append(num_blocks if span == widest else min(num_blocks, most))
        return tuple(found)

    def bytes(self, num_blocks: int) -> int:
        """Keys and values of all pools."""
        sizes = self.sizes(num_blocks)
        return self.block_size * sum(
            size * group.bytes_per_token for size, group in zip(sizes, self.groups, strict=True)
        )

    def largest(self, room: int, overhead: int = 0) -> int:
        """The most blocks of the widest group whose pools take at most `room` bytes, each block of
        any group `overhead` bytes more."""
        low, high = 0, max(0, room)
        if len(self.groups) == 1:
            return high // max(1, self.bytes(1) + overhead)
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes(middle) + overhead * sum(self.sizes(middle)) <= room:
                low = middle
            else:
                high = middle - 1
        return low

    def wanted(self, tokens: int) -> int:
        """Blocks of the widest group without which a sequence of `tokens` cannot run."""
        return min(self.blocks(tokens), self.span)

    def enough(self, sequences: int, tokens: int) -> int:
        """Blocks of the widest group with which so many sequences of `tokens` run together."""
        step = self.blocks(self.step) if self.blocks(tokens) > self.span else 0
        return sequences * self.wanted(tokens) + step

    def longest(self, num_blocks: int) -> int:
        """The most tokens of a sequence."""
        return UNBOUNDED if num_blocks >= self.span else num_blocks * self.block_size

    def together(self, num_blocks: int, tokens: int) -> int:
        """How many sequences of `tokens` the pools hold at once."""
        counts = [
            size * self.block_size // tokens if self.blocks(tokens) <= span else size // span
            for size, span in zip(
                self.sizes(num_blocks),
                (span_blocks(group.window, self.block_size) for group in self.groups),
                strict=True,
            )
        ]
        return min(counts)

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
