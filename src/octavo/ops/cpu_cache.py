"""The KV cache, the uploaded batch, rope and attention of the compiled backend.

Owns: the calls of those kernels, and rope's tables.
Does not know: weights, sampling; how tiles are laid out (csrc/kv_types.hpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops import AttentionSpec, CacheLayout, HostBatch, RopeSpec
from octavo.ops.reference_attention import RopeTable

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(slots=True)
class CpuBatch:
    """`kv` is the native `KvBatch`: positions, rows and block tables. `reach` is the number of
    positions that a table over positions must have."""

    ids: Ids
    positions: Ids
    logit_tokens: Ids
    kv: Any
    reach: int


class CpuAttention:
    """`native` is the extension module, `pool` its threads."""

    def __init__(self, native: ModuleType, pool: Any) -> None:
        self._native = native
        self._pool = pool
        self._ropes: dict[RopeSpec, RopeTable] = {}
        self._slopes: dict[tuple[float, ...], Floats] = {}

    def upload(self, batch: HostBatch) -> CpuBatch:
        """Raises ValueError where the batch's lists do not fit together, or a row's block table
        does not cover its positions."""
        tokens = len(batch.ids)
        wanted = np.array(batch.logit_tokens, np.int64)
        if len(batch.positions) != tokens:
            raise ValueError(f"{len(batch.positions)} positions for {tokens} tokens")
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < tokens:
            raise ValueError(f"logits are wanted of a token that is not among the {tokens}")
        kv = self._native.KvBatch(
            batch.block_size, batch.positions, batch.row_starts, batch.tables, batch.write_from
        )
        positions = np.array(batch.positions, np.int64)
        reach = int(positions.max(initial=-1)) + 1
        return CpuBatch(np.array(batch.ids, np.int64), positions, wanted, kv, reach)

    def rope_and_store(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        cache: Any,
        batch: CpuBatch,
        rope: RopeSpec | None,
        spec: AttentionSpec,
    ) -> Floats:
        """Raises ValueError for shapes, layers or block ids that do not fit the cache."""
        place = (spec.group, spec.layer, self._pool)
        if rope is None:
            self._native.rope_and_store(q, k, v, cache, batch.kv, None, None, False, *place)
            return q
        cos, sin = self.rope_table(rope, batch.reach)
        rotated: Floats = self._native.rope_and_store(
            q, k, v, cache, batch.kv, cos, sin, rope.interleaved, *place
        )
        return rotated

    def attention(self, q: Floats, cache: Any, batch: CpuBatch, spec: AttentionSpec) -> Floats:
        """Raises ValueError for shapes, layers or block ids that do not fit the cache."""
        out: Floats = self._native.attention(
            q,
            cache,
            batch.kv,
            spec.group,
            spec.layer,
            spec.scale,
            spec.window,
            spec.softcap,
            self.slopes(spec),
            None,
            self._pool,
        )
        return out

    def rope_table(self, rope: RopeSpec, reach: int) -> tuple[Floats, Floats]:
        """Cosines and sines of positions 0 to `reach`, at least: (positions, pairs)."""
        if rope not in self._ropes:
            self._ropes[rope] = RopeTable(rope)
        return self._ropes[rope].table(reach)

    def slopes(self, spec: AttentionSpec) -> Floats | None:
        """ALiBi's slope of each head, or None."""
        if not spec.alibi_slopes:
            return None
        if spec.alibi_slopes not in self._slopes:
            self._slopes[spec.alibi_slopes] = np.array(spec.alibi_slopes, np.float32)
        return self._slopes[spec.alibi_slopes]

    def allocate_cache(self, layout: CacheLayout, blocks: Sequence[int]) -> Any:
        """Raises ValueError for a layout that the kernels cannot hold, MemoryError."""
        return self._native.KvCache(
            layout.dtype,
            layout.block_size,
            layout.kv_heads,
            layout.head_dim,
            list(layout.layers),
            list(blocks),
        )

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int, int]]) -> None:
        cache.copy(list(pairs), self._pool)

    def read_block(self, cache: Any, group: int, block: int) -> bytes:
        data: bytes = cache.read_block(group, block)
        return data

    def write_block(self, cache: Any, group: int, block: int, data: bytes) -> None:
        cache.write_block(group, block, data)
