"""The paged KV cache and the uploaded batch of the numpy reference.

Owns: where a position's key and value lie, writing, gathering and copying blocks.
Does not know: attention, rope, scheduling. Block ids are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.ops import CacheLayout, HostBatch

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class ReferenceCache:
    """`keys[group]` and `values[group]`: (layers, blocks, block_size, kv_heads, head_dim)."""

    def __init__(self, layout: CacheLayout, blocks: Sequence[int]) -> None:
        if layout.dtype != "float32":
            raise ValueError(
                f"the reference backend keeps keys and values in float32, not {layout.dtype}"
            )
        if len(blocks) != len(layout.layers):
            raise ValueError(f"{len(blocks)} pools for {len(layout.layers)} KV groups")
        self.block_size = layout.block_size
        shapes = [
            (layers, count, layout.block_size, layout.kv_heads, layout.head_dim)
            for layers, count in zip(layout.layers, blocks, strict=True)
        ]
        # zeros, not empty: untouched pages cost no memory, and no read meets stale NaNs.
        self.keys: list[Floats] = [np.zeros(shape, np.float32) for shape in shapes]
        self.values: list[Floats] = [np.zeros(shape, np.float32) for shape in shapes]

    def store(self, group: int, layer: int, slots: Ids, keys: Floats, values: Floats) -> None:
        """Write (tokens, kv_heads, head_dim) to flat slots (block * block_size + offset)."""
        for pool, new in ((self.keys[group][layer], keys), (self.values[group][layer], values)):
            pool.reshape(-1, *pool.shape[2:])[slots] = new

    def gather(
        self, group: int, layer: int, table: Ids, start: int, stop: int
    ) -> tuple[Floats, Floats, int]:
        """Keys and values of positions from a block border at or below `start` up to `stop`:
        two arrays (positions, kv_heads, head_dim), and the first position."""
        size = self.block_size
        blocks = table[start // size : -(-stop // size)]
        first = start // size * size
        found = [
            pool[group][layer][blocks].reshape(-1, *pool[group].shape[3:])[: stop - first]
            for pool in (self.keys, self.values)
        ]
        return found[0], found[1], first

    def copy(self, pairs: Sequence[tuple[int, int, int]]) -> None:
        """(group, source, target); all sources are read before any target is written."""
        for group in {pair[0] for pair in pairs}:
            sources = [s for g, s, _ in pairs if g == group]
            targets = [t for g, _, t in pairs if g == group]
            for pool in (self.keys[group], self.values[group]):
                pool[:, targets] = pool[:, sources]  # indexing by a list reads into a fresh array

    def read(self, group: int, block: int) -> bytes:
        """Keys of all layers, then values."""
        self._require(group, block)
        return b"".join(pool[group][:, block].tobytes() for pool in (self.keys, self.values))

    def write(self, group: int, block: int, data: bytes) -> None:
        """What `read` gave."""
        self._require(group, block)
        into = self.keys[group][:, block], self.values[group][:, block]
        if len(data) != 2 * into[0].nbytes:
            raise ValueError(f"{len(data)} bytes for a block of {2 * into[0].nbytes}")
        both = np.frombuffer(data, np.float32).reshape(2, *into[0].shape)
        into[0][:], into[1][:] = both

    def _require(self, group: int, block: int) -> None:
        if not (0 <= group < len(self.keys) and 0 <= block < self.keys[group].shape[1]):
            pools = [pool.shape[1] for pool in self.keys]
            raise ValueError(f"block {block} of KV group {group}; the pools have {pools} blocks")


@dataclass(slots=True)
class RowSpan:
    """One row's tokens `begin ..< end` of the batch, at positions from `start` on."""

    begin: int
    end: int
    start: int
    tables: list[Ids]


@dataclass(slots=True)
class ReferenceBatch:
    """`slots[group]` holds the flat cache slot of each token in `written` (indices of the tokens
    whose keys and values are to be stored)."""

    ids: Ids
    positions: Ids
    rows: list[RowSpan]
    written: Ids
    slots: list[Ids]
    logit_tokens: Ids


def upload(batch: HostBatch) -> ReferenceBatch:
    """Raises ValueError where a row's table does not cover its positions."""
    block_size = batch.block_size
    positions = np.array(batch.positions, np.int64)
    rows = []
    kept = []
    for r, (begin, end) in enumerate(zip(batch.row_starts, batch.row_starts[1:], strict=False)):
        tables = [np.array(group[r], np.int64) for group in batch.tables]
        last = batch.positions[end - 1]
        for table in tables:
            if table.size * block_size <= last:
                raise ValueError(
                    f"row {r} reaches position {last}, but its block table covers "
                    f"{table.size * block_size} positions"
                )
        rows.append(RowSpan(begin, end, batch.positions[begin], tables))
        first_new = min(end, begin + max(0, batch.write_from[r] - batch.positions[begin]))
        kept.append(np.arange(first_new, end))
    written = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    slots = [_slots(positions, rows, kept, group, block_size) for group in range(len(batch.tables))]
    return ReferenceBatch(
        ids=np.array(batch.ids, np.int64),
        positions=positions,
        rows=rows,
        written=written,
        slots=slots,
        logit_tokens=np.array(batch.logit_tokens, np.int64),
    )


def _slots(
    positions: Ids, rows: list[RowSpan], kept: list[Ids], group: int, block_size: int
) -> Ids:
    parts = [
        row.tables[group][positions[tokens] // block_size] * block_size
        + positions[tokens] % block_size
        for row, tokens in zip(rows, kept, strict=True)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
