"""Random ragged batches for comparing a backend with the numpy reference.

Owns: sequences with their vectors by position, their scattered block tables, and how far each is
computed.
Does not know: backends. A test hands the same `HostBatch` and arrays to each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from octavo.ops import AttentionSpec, HostBatch

BLOCK = 4
POOL = 96
"""Blocks in the pool that the tables draw from."""


@dataclass
class RaggedStream:
    length: int
    table: list[int]
    computed: int = 0


@dataclass
class RaggedRows:
    """`streams` sequences of 1 to `longest` tokens, over blocks in an order of no regularity."""

    rng: np.random.Generator
    streams: list[RaggedStream] = field(default_factory=list)

    @classmethod
    def draw(cls, rng: np.random.Generator, streams: int = 4, longest: int = 60) -> RaggedRows:
        free = [int(block) for block in rng.permutation(POOL)]
        made = []
        for _ in range(streams):
            length = int(rng.integers(1, longest + 1))
            made.append(RaggedStream(length, [free.pop() for _ in range(-(-length // BLOCK))]))
        return cls(rng, made)

    def step(self, groups: int = 1) -> HostBatch | None:
        """A batch of some of the unfinished sequences, in chunks of 1 to 11 tokens; None when all
        are computed. Every KV group has the same tables."""
        open_streams = [s for s in self.streams if s.computed < s.length]
        if not open_streams:
            return None
        count = int(self.rng.integers(1, len(open_streams) + 1))
        batch = HostBatch(BLOCK, tables=[[] for _ in range(groups)])
        for r, index in enumerate(self.rng.permutation(len(open_streams))[:count]):
            stream = open_streams[int(index)]
            end = min(stream.length, stream.computed + int(self.rng.integers(1, 12)))
            batch.ids += [int(i) for i in self.rng.integers(0, 50, end - stream.computed)]
            batch.positions += range(stream.computed, end)
            batch.row_of += [r] * (end - stream.computed)
            batch.row_starts.append(len(batch.ids))
            batch.write_from.append(stream.computed)
            batch.logit_tokens.append(len(batch.ids) - 1)
            for group in batch.tables:
                group.append(stream.table[: -(-end // BLOCK)])
            stream.computed = end
        return batch

    def vectors(self, tokens: int, spec: AttentionSpec) -> tuple[np.ndarray, ...]:
        """q, k and v as slices of one fused array, as the decoder passes them."""
        query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        fused = self.rng.normal(0, 1.5, (tokens, query + 2 * kv)).astype(np.float32)
        return fused[:, :query], fused[:, query : query + kv], fused[:, query + kv :]
