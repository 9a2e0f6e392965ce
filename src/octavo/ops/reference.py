"""The reference backend: every op in numpy and float32. It runs anywhere and is the oracle.

Owns: weights as float32 matrices, and the plain ops.
Does not know: models, requests. Attention, cache and sampling are in files of their own.

BLAS may change its order of summation with the shape of the batch, so the plain mode is not
row-independent to the last bit. With `row_at_a_time` every op computes each token by itself, in
shapes that depend on the model and the token's position only: slower, and bitwise independent of
batch, chunking, block ids and number of threads.

BLAS itself is to run on one thread (`machine.limit_thread_pools`): its own threads split work
statically and spin, which on a shared machine costs a multiple of what it gains. Large products are
cut into pieces here instead, and our own threads claim them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops import (
    AttentionSpec,
    CacheLayout,
    HostBatch,
    NormSpec,
    RawWeight,
    RopeSpec,
    RoutingSpec,
    SampledRow,
    SampleRow,
)
from octavo.ops.reference_act import activate
from octavo.ops.reference_attention import RopeTable, attend, rotate
from octavo.ops.reference_cache import ReferenceBatch, ReferenceCache, upload
from octavo.ops.reference_experts import ExpertSet, check_experts, mix
from octavo.ops.reference_sampling import sample_rows, score_rows
from octavo.ops.workers import Workers

Floats = NDArray[np.float32]

QUIETLY = np.errstate(all="ignore")
"""Overflow is no warning here: what is not finite is found, and told, at the logits."""

MIN_OUTPUTS = 128
MAX_PIECES = 16
"""A product is cut into so many pieces of at least so many outputs, for threads to claim."""

WORTH_SHARING = 1 << 23
"""Multiplications from which on a product is worth waking other threads for."""

QUERY_CHUNK = 128
"""Queries whose scores are held at once: bounds attention's memory on long prompts."""


@dataclass(slots=True)
class PackedWeight:
    """`matrix`: (outputs, inputs); `bias`: (outputs,) or None."""

    matrix: Floats
    bias: Floats | None


class ReferenceOps:
    """Implements `octavo.ops.Ops`, on `threads` threads."""

    name = "reference"

    def __init__(self, *, threads: int = 1, row_at_a_time: bool = False) -> None:
        self.row_at_a_time = row_at_a_time
        self.notes: list[str] = []
        self._workers = Workers(threads)
        self._ropes: dict[RopeSpec, RopeTable] = {}

    @property
    def identity(self) -> str:
        found = np.show_config(mode="dicts") or {}
        simd: Any = found.get("SIMD Extensions", {})
        features = ",".join(simd.get("found", []))
        mode = "rows" if self.row_at_a_time else "batch"
        return f"reference:1 numpy:{np.__version__} simd:{features} mode:{mode}"

    def recorded(self, forward: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return partial(forward, self)

    def pack(
        self, weights: Sequence[RawWeight], bias: Sequence[RawWeight] = (), exact: bool = False
    ) -> PackedWeight:
        inputs = {w.shape[1] for w in weights}
        if len(inputs) != 1:
            shapes = ", ".join(f"{w.name} {w.shape}" for w in weights)
            raise ValueError(f"weights to be fused differ in their inputs: {shapes}")
        if len(weights) == 1:
            # Kept as it is, unless it is a view of a file that will be closed.
            whole = np.asarray(weights[0].dequantize(), np.float32)
            matrix = whole if whole.flags.owndata else whole.copy()
        else:
            matrix = np.empty((sum(w.shape[0] for w in weights), inputs.pop()), np.float32)
            row = 0
            for weight in weights:
                matrix[row : row + weight.shape[0]] = weight.dequantize()
                row += weight.shape[0]
        if not bias:
            return PackedWeight(matrix, None)
        joined = np.concatenate([self.vector(b) for b in bias])
        if joined.size != matrix.shape[0]:
            raise ValueError(f"{bias[0].name}: {joined.size} values for {matrix.shape[0]} outputs")
        return PackedWeight(matrix, joined)

    def vector(self, weight: RawWeight) -> Floats:
        return np.array(weight.dequantize(), np.float32)

    def upload(self, batch: HostBatch) -> ReferenceBatch:
        return upload(batch)

    @QUIETLY
    def linear(self, x: Floats, weight: PackedWeight) -> Floats:
        """Large products go in pieces of the outputs, whose bounds depend on the weight alone."""
        matrix = weight.matrix
        rows, (outputs, inputs) = x.shape[0], matrix.shape
        out = np.empty((rows, outputs), np.float32)
        step = max(MIN_OUTPUTS, -(-outputs // MAX_PIECES))

        def piece(index: int) -> None:
            with np.errstate(all="ignore"):  # of this thread, not of the caller's
                part = slice(index * step, (index + 1) * step)
                if self.row_at_a_time:
                    for i in range(rows):
                        np.matmul(matrix[part], x[i], out=out[i, part])
                else:
                    np.matmul(x, matrix[part].T, out=out[:, part])

        if rows * outputs * inputs >= WORTH_SHARING:
            self._workers.run(-(-outputs // step), piece)
        elif self.row_at_a_time:
            for index in range(-(-outputs // step)):
                piece(index)
        else:
            np.matmul(x, matrix.T, out=out)
        if weight.bias is not None:
            out += weight.bias
        return out

    def bundle(
        self,
        experts: Sequence[tuple[PackedWeight, PackedWeight]],
        kind: str,
        spec: RoutingSpec,
    ) -> ExpertSet:
        check_experts([(up.matrix.shape, down.matrix.shape) for up, down in experts], kind, spec)
        return ExpertSet(tuple(experts), kind, spec)

    @QUIETLY
    def experts(self, x: Floats, scores: Floats, experts: ExpertSet) -> Floats:
        def mlp(rows: Floats, expert: tuple[Any, Any], kind: str) -> Floats:
            return self.linear(self.act(self.linear(rows, expert[0]), kind), expert[1])

        if not self.row_at_a_time:
            return mix(x, scores, experts, mlp)
        out = np.empty_like(x)
        for i in range(len(x)):
            out[i : i + 1] = mix(x[i : i + 1], scores[i : i + 1], experts, mlp)
        return out

    def embed(self, ids: ReferenceBatch, table: PackedWeight) -> Floats:
        return table.matrix[ids.ids]

    def embed_positions(
        self, batch: ReferenceBatch, table: PackedWeight, offset: int = 0
    ) -> Floats:
        return table.matrix[batch.positions + offset]

    @QUIETLY
    def norm(
        self,
        x: Floats,
        weight: Floats,
        spec: NormSpec,
        residual: Floats | None = None,
        bias: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        total = x if residual is None else x + residual
        factor = weight + np.float32(spec.weight_offset) if spec.weight_offset else weight

        def one(part: Floats) -> Floats:
            if spec.kind == "layer":
                part = part - part.mean(axis=-1, keepdims=True)
            square = np.square(part).mean(axis=-1, keepdims=True)
            scaled: Floats = part / np.sqrt(square + np.float32(spec.eps)) * factor
            return scaled

        pieces = total.reshape(-1, weight.size)
        normed = self._by_row(one, pieces)
        return (normed if bias is None else normed + bias).reshape(total.shape), total

    @QUIETLY
    def rope_and_store(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        cache: ReferenceCache,
        batch: ReferenceBatch,
        rope: RopeSpec | None,
        spec: AttentionSpec,
    ) -> Floats:
        tokens = q.shape[0]
        keys = k.reshape(tokens, spec.kv_heads, spec.head_dim)
        values = v.reshape(tokens, spec.kv_heads, spec.head_dim)
        if rope is not None:
            if rope not in self._ropes:
                self._ropes[rope] = RopeTable(rope)
            cos, sin = self._ropes[rope].rows(batch.positions)
            keys = rotate(keys, cos, sin, rope.interleaved)
            queries = q.reshape(tokens, spec.heads, spec.head_dim)
            q = rotate(queries, cos, sin, rope.interleaved).reshape(tokens, -1)
        written, slots = batch.written, batch.slots[spec.group]
        cache.store(spec.group, spec.layer, slots, keys[written], values[written])
        return q

    @QUIETLY
    def attention(
        self, q: Floats, cache: ReferenceCache, batch: ReferenceBatch, spec: AttentionSpec
    ) -> Floats:
        return attend(q, cache, batch, spec, chunk=1 if self.row_at_a_time else QUERY_CHUNK)

    @QUIETLY
    def act(self, x: Floats, kind: str) -> Floats:
        return self._by_row(lambda part: activate(part, kind), x)

    @QUIETLY
    def add(self, x: Floats, y: Floats, scale: float = 1.0) -> Floats:
        return x + y if scale == 1.0 else x + y * np.float32(scale)

    @QUIETLY
    def scale(self, x: Floats, factor: float) -> Floats:
        return x * np.float32(factor)

    @QUIETLY
    def bound(self, x: Floats, limit: float, smooth: bool = False) -> Floats:
        most = np.float32(limit)
        return most * np.tanh(x / most) if smooth else np.clip(x, -most, most)

    def logit_rows(self, x: Floats, batch: ReferenceBatch) -> Floats:
        return x[batch.logit_tokens]

    def sample(self, logits: Floats, rows: Sequence[SampleRow]) -> list[SampledRow]:
        return sample_rows(logits, rows)

    def score(self, logits: Floats, targets: Sequence[int], top: int) -> list[SampledRow]:
        return score_rows(logits, targets, top)

    def allocate_cache(self, layout: CacheLayout, blocks: Sequence[int]) -> ReferenceCache:
        return ReferenceCache(layout, blocks)

    def copy_blocks(self, cache: ReferenceCache, pairs: Sequence[tuple[int, int, int]]) -> None:
        cache.copy(pairs)

    def read_block(self, cache: ReferenceCache, group: int, block: int) -> bytes:
        return cache.read(group, block)

    def write_block(self, cache: ReferenceCache, group: int, block: int, data: bytes) -> None:
        cache.write(group, block, data)

    def _by_row(self, function: Callable[[Floats], Floats], x: Floats) -> Floats:
        """`function` of (tokens, n), in row-at-a-time mode token by token."""
        if self.row_at_a_time and x.shape[0] > 1:
            return np.concatenate([function(x[i : i + 1]) for i in range(x.shape[0])])
        return function(x)
