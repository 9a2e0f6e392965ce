"""The paged KV cache and the uploaded batch as torch tensors on one device.

Owns: where a position's key and value lie; writing, gathering and copying blocks; the one transfer
that brings a step's integers to the device.
Does not know: attention, rope, scheduling. Block ids are the caller's.

What a kernel reads lies on the device; what the host needs to slice by (spans of rows) stays there
as integers, because to read it back from the device would make the host wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.ops import CacheLayout, HostBatch, RopeSpec

Ids = NDArray[np.int64]

CACHE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CudaCache:
    """`keys[group]` and `values[group]`: (layers, blocks, block_size, kv_heads, head_dim)."""

    def __init__(self, layout: CacheLayout, blocks: Sequence[int], device: torch.device) -> None:
        if layout.dtype not in CACHE_DTYPES:
            raise ValueError(
                f"the cuda backend keeps keys and values in {' or '.join(CACHE_DTYPES)}, "
                f"not {layout.dtype}"
            )
        if len(blocks) != len(layout.layers):
            raise ValueError(f"{len(blocks)} pools for {len(layout.layers)} KV groups")
        self.block_size = layout.block_size
        dtype = CACHE_DTYPES[layout.dtype]
        shapes = [
            (layers, count, layout.block_size, layout.kv_heads, layout.head_dim)
            for layers, count in zip(layout.layers, blocks, strict=True)
        ]
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]

    def store(
        self,
        group: int,
        layer: int,
        slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Write (tokens, kv_heads, head_dim) to flat slots (block * block_size + offset)."""
        for pool, new in ((self.keys[group], keys), (self.values[group], values)):
            flat = pool[layer].view(-1, *pool.shape[3:])
            flat.index_copy_(0, slots, new.to(flat.dtype))

    def gather(
        self, group: int, layer: int, table: torch.Tensor, start: int, stop: int
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Keys and values of positions from a block border at or below `start` up to `stop`:
        two float32 tensors (positions, kv_heads, head_dim), and the first position."""
        size = self.block_size
        blocks = table[start // size : -(-stop // size)]
        first = start // size * size

        def read(pool: torch.Tensor) -> torch.Tensor:
            found = pool[layer].index_select(0, blocks)
            return found.view(-1, *pool.shape[3:])[: stop - first].float()

        return read(self.keys[group]), read(self.values[group]), first

    def copy(self, pairs: Sequence[tuple[int, int, int]]) -> None:
        """(group, source, target); all sources are read before any target is written."""
        for group in {pair[0] for pair in pairs}:
            for pool in (self.keys[group], self.values[group]):
                chosen = [(s, t) for g, s, t in pairs if g == group]
                sources, targets = torch.tensor(chosen, device=pool.device).unbind(1)
                pool.index_copy_(1, targets, pool.index_select(1, sources))

    def read(self, group: int, block: int) -> bytes:
        """Keys of all layers, then values; waits for the work that was begun before."""
        self._require(group, block)
        both = torch.stack([self.keys[group][:, block], self.values[group][:, block]])
        return bytes(both.contiguous().view(torch.uint8).cpu().numpy())

    def write(self, group: int, block: int, data: bytes) -> None:
        """What `read` gave."""
        self._require(group, block)
        into = self.keys[group][:, block], self.values[group][:, block]
        size = 2 * into[0].numel() * into[0].element_size()
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes for a block of {size}")
        flat = torch.frombuffer(bytearray(data), dtype=into[0].dtype)
        both = flat.view(2, *into[0].shape).to(into[0].device)
        into[0].copy_(both[0])
        into[1].copy_(both[1])

    def _require(self, group: int, block: int) -> None:
        if not (0 <= group < len(self.keys) and 0 <= block < self.keys[group].shape[1]):
            pools = [pool.shape[1] for pool in self.keys]
            raise ValueError(f"block {block} of KV group {group}; the pools have {pools} blocks")


@dataclass(slots=True)
class RowSpan:
    """One row's tokens `begin ..< end` of the batch, at positions from `start` on. Host integers,
    but for the block tables."""

    begin: int
    end: int
    start: int
    tables: list[torch.Tensor]


@dataclass(slots=True)
class CudaBatch:
    """`slots[group]` holds the flat cache slot of each token in `written` (indices of the tokens
    whose keys and values are to be stored). `ropes`: cos and sin of the batch's positions, worked
    out by the first layer that asks."""

    ids: torch.Tensor
    positions: torch.Tensor
    rows: list[RowSpan]
    written: torch.Tensor
    slots: list[torch.Tensor]
    logit_tokens: torch.Tensor
    ropes: dict[RopeSpec, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


def upload(batch: HostBatch, device: torch.device) -> CudaBatch:
    """All integers of a step go in one transfer. Raises ValueError where a row's table does not
    cover its positions."""
    positions = np.array(batch.positions, np.int64)
    starts = np.array(batch.row_starts, np.int64).tolist()
    tables = [[np.array(table, np.int64) for table in group] for group in batch.tables]
    spans = list(pairwise(starts))
    _check(spans, positions, tables, batch.block_size)
    kept = [
        np.arange(min(end, begin + max(0, batch.write_from[r] - int(positions[begin]))), end)
        for r, (begin, end) in enumerate(spans)
    ]
    slots = [_slots(positions, kept, group, batch.block_size) for group in tables]
    parts = [
        np.array(batch.ids, np.int64),
        positions,
        _join(kept),
        np.array(batch.logit_tokens, np.int64),
    ]
    parts += slots
    parts += [table for group in tables for table in group]
    sent = torch.from_numpy(_join(parts)).to(device).split([part.size for part in parts])
    rest = iter(sent[4 + len(slots) :])
    sent_tables = [[next(rest) for _ in group] for group in tables]
    rows = [
        RowSpan(begin, end, int(positions[begin]), [group[r] for group in sent_tables])
        for r, (begin, end) in enumerate(spans)
    ]
    ids, where, written, logit_tokens = sent[:4]
    return CudaBatch(ids, where, rows, written, list(sent[4 : 4 + len(slots)]), logit_tokens)


def _check(
    spans: list[tuple[int, int]], positions: Ids, tables: list[list[Ids]], block_size: int
) -> None:
    for r, (_, end) in enumerate(spans):
        last = int(positions[end - 1])
        for group in tables:
            covered = group[r].size * block_size
            if covered <= last:
                raise ValueError(
                    f"row {r} reaches position {last}, but its block table covers "
                    f"{covered} positions"
                )


def _slots(positions: Ids, kept: list[Ids], tables: list[Ids], block_size: int) -> Ids:
    return _join(
        [
            table[positions[tokens] // block_size] * block_size + positions[tokens] % block_size
            for table, tokens in zip(tables, kept, strict=True)
        ]
    )


def _join(parts: list[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
