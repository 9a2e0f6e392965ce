"""Rotary embedding and paged attention in plain torch.

Owns: the rotation, causal attention of ragged rows over their block tables.
Does not know: how the cache is laid out (cuda_cache), weights, sampling.

Attention reads keys and values only from the cache: each row gathers exactly its own positions
through its block table, so that what a block held before it was given to the row is never read.
"""

from __future__ import annotations

from typing import cast

import torch

from octavo.ops import AttentionSpec, RopeSpec
from octavo.ops.attention_rows import attend_rows, rotate_into
from octavo.ops.cuda_cache import CudaBatch, CudaCache

QUERY_CHUNK = 256
"""Queries whose scores are held at once: bounds attention's memory on long prompts."""


def rope_rows(rope: RopeSpec, batch: CudaBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of the batch's positions, (tokens, 1, rotary_dim / 2) each, to be broadcast over
    heads. Angles are float32 products, as the models were trained with."""
    if rope not in batch.ropes:
        frequencies = torch.tensor(
            rope.inverse_frequencies, dtype=torch.float32, device=batch.positions.device
        )
        angles = torch.outer(batch.positions.float(), frequencies)[:, None]
        batch.ropes[rope] = angles.cos() * rope.scale, angles.sin() * rope.scale
    return batch.ropes[rope]


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Rotate the first 2 * cos.shape[-1] dimensions of (tokens, heads, head_dim)."""
    out = x.clone(memory_format=torch.contiguous_format)
    return cast(torch.Tensor, rotate_into(out, x, cos, sin, interleaved))


def attend(
    q: torch.Tensor, cache: CudaCache, batch: CudaBatch, spec: AttentionSpec
) -> torch.Tensor:
    """(tokens, heads * head_dim) -> the same shape."""
    out = q.new_empty(q.shape)
    return cast(torch.Tensor, attend_rows(out, q, cache, batch, spec, QUERY_CHUNK, _attend))


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    q_start: int,
    k_start: int,
    spec: AttentionSpec,
) -> torch.Tensor:
    """Queries at consecutive positions over consecutive keys (positions, kv_heads, head_dim)."""
    count, context = q.shape[0], keys.shape[0]
    shared = spec.heads // spec.kv_heads
    by_head = q.reshape(count, spec.kv_heads, shared, spec.head_dim).permute(1, 2, 0, 3)
    grouped = by_head.reshape(spec.kv_heads, shared * count, spec.head_dim)
    scores = torch.bmm(grouped, keys.permute(1, 2, 0)) * spec.scale
    if spec.softcap:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    scores = scores.view(spec.kv_heads, shared, count, context)
    if count > 1 or spec.alibi_slopes:
        at = torch.arange(q_start, q_start + count, device=q.device)
        distance = at[:, None] - torch.arange(k_start, k_start + context, device=q.device)
        if spec.alibi_slopes:
            slopes = torch.tensor(spec.alibi_slopes, dtype=torch.float32, device=q.device)
            scores = scores - slopes.view(spec.kv_heads, shared, 1, 1) * distance
        hidden = distance < 0
        if spec.window:
            hidden = hidden | (distance >= spec.window)
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, dim=-1).view(spec.kv_heads, shared * count, context)
    mixed = torch.bmm(weights, values.permute(1, 0, 2))
    by_token = mixed.view(spec.kv_heads, shared, count, spec.head_dim).permute(2, 0, 1, 3)
    return by_token.reshape(count, spec.heads * spec.head_dim)
