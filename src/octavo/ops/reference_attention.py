"""Rotary embedding and paged attention of the numpy reference.

Owns: the rope table, the rotation, causal attention of ragged rows over their block tables.
Does not know: how the cache is laid out (reference_cache), weights, sampling.

Attention reads keys and values only from the cache. Its queries go `chunk` at a time over the keys
that the last of them may see; with a chunk of one the shapes, and so the order of all sums, depend
on the token's position alone, which is the row-at-a-time mode.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from octavo.ops import AttentionSpec, RopeSpec
from octavo.ops.attention_rows import attend_rows, rotate_into
from octavo.ops.reference_cache import ReferenceBatch, ReferenceCache

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

TABLE_STEP = 1024
"""The rope table grows by so many positions, each step computed by itself: an entry's bits do not
depend on when it was first needed."""


class RopeTable:
    """cos and sin of every position up to the largest yet seen, for one `RopeSpec`.

    Angles are float32 products, as the models were trained with.
    """

    def __init__(self, spec: RopeSpec) -> None:
        self._frequencies = np.array(spec.inverse_frequencies, np.float32)
        self._scale = np.float32(spec.scale)
        self._cos = np.zeros((0, self._frequencies.size), np.float32)
        self._sin = self._cos

    def rows(self, positions: Ids) -> tuple[Floats, Floats]:
        """(tokens, 1, rotary_dim / 2) each, to be broadcast over heads."""
        cos, sin = self.table(positions.max(initial=-1) + 1)
        return cos[positions, None], sin[positions, None]

    def table(self, count: int) -> tuple[Floats, Floats]:
        """At least the first `count` positions: (positions, rotary_dim / 2) each."""
        while self._cos.shape[0] < count:
            start = self._cos.shape[0]
            angles = np.outer(
                np.arange(start, start + TABLE_STEP, dtype=np.float32), self._frequencies
            )
            self._cos = np.concatenate([self._cos, np.cos(angles) * self._scale])
            self._sin = np.concatenate([self._sin, np.sin(angles) * self._scale])
        return self._cos, self._sin


def rotate(x: Floats, cos: Floats, sin: Floats, interleaved: bool) -> Floats:
    """Rotate the first 2 * cos.shape[-1] dimensions of (tokens, heads, head_dim)."""
    return cast(Floats, rotate_into(x.copy(), x, cos, sin, interleaved))


def attend(
    q: Floats, cache: ReferenceCache, batch: ReferenceBatch, spec: AttentionSpec, chunk: int
) -> Floats:
    """(tokens, heads * head_dim) -> the same shape."""
    out = np.empty_like(q, order="C")
    return cast(Floats, attend_rows(out, q, cache, batch, spec, chunk, _attend))


def _attend(
    q: Floats, keys: Floats, values: Floats, q_start: int, k_start: int, spec: AttentionSpec
) -> Floats:
    """Queries at consecutive positions over consecutive keys (positions, kv_heads, head_dim)."""
    count, context = q.shape[0], keys.shape[0]
    shared = spec.heads // spec.kv_heads
    by_head = q.reshape(count, spec.kv_heads, shared, spec.head_dim).transpose(1, 2, 0, 3)
    grouped = by_head.reshape(spec.kv_heads, shared * count, spec.head_dim)
    scores: Floats = np.matmul(grouped, keys.transpose(1, 2, 0)) * np.float32(spec.scale)
    if spec.softcap:
        cap = np.float32(spec.softcap)
        scores = np.tanh(scores / cap) * cap
    scores = scores.reshape(spec.kv_heads, shared, count, context)
    if count > 1 or spec.alibi_slopes:
        distance = np.arange(q_start, q_start + count)[:, None] - np.arange(
            k_start, k_start + context
        )
        if spec.alibi_slopes:
            slopes = np.array(spec.alibi_slopes, np.float32).reshape(spec.kv_heads, shared, 1, 1)
            scores = scores - slopes * distance.astype(np.float32)
        hidden = distance < 0
        if spec.window:
            hidden |= distance >= spec.window
        scores[..., hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    weights = scores.reshape(spec.kv_heads, shared * count, context)
    mixed = np.matmul(weights, values.transpose(1, 0, 2))
    mixed = mixed.reshape(spec.kv_heads, shared, count, spec.head_dim) / total
    out: Floats = mixed.transpose(2, 0, 1, 3).reshape(count, spec.heads * spec.head_dim)
    return out
