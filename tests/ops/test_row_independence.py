"""Row-at-a-time mode: every op's bits for a token are the same in any batch, chunk or block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from octavo.ops import AttentionSpec, CacheLayout, HostBatch, NormSpec, RawWeight, RopeSpec
from octavo.ops.reference import PackedWeight, ReferenceOps
from octavo.ops.reference_cache import ReferenceCache

HIDDEN, BS, POOL = 96, 4, 128
Op = Callable[[ReferenceOps, np.ndarray], np.ndarray]


def weight(ops: ReferenceOps, outputs: int, inputs: int) -> PackedWeight:
    array = np.random.default_rng(5).normal(size=(outputs, inputs)).astype(np.float32)
    return ops.pack([RawWeight("w", array.shape, "f32", array, lambda: array)])


VECTOR = np.random.default_rng(6).normal(size=HIDDEN).astype(np.float32)
TOKEN_OPS: dict[str, Op] = {
    "linear": lambda ops, x: ops.linear(x, weight(ops, 131, HIDDEN)),
    "rms": lambda ops, x: ops.norm(x, VECTOR, NormSpec("rms", 1e-5, 1.0), x * 3)[0],
    "layer": lambda ops, x: ops.norm(x, VECTOR, NormSpec("layer", 1e-5), x * 3, VECTOR)[0],
    "add": lambda ops, x: ops.add(x, x, 0.3),
    "scale": lambda ops, x: ops.scale(x, 0.3),
    "heads": lambda ops, x: ops.norm(x, VECTOR[:16], NormSpec("rms", 1e-5), None, VECTOR[:16])[0],
    "clip": lambda ops, x: ops.bound(x, 1.5),
    "softcap": lambda ops, x: ops.bound(x, 3.0, smooth=True),
    **{
        kind: lambda ops, x, kind=kind: ops.act(x, kind)  # type: ignore[misc]
        for kind in ("silu", "gelu", "gelu_tanh", "relu", "silu_gated", "gelu_tanh_gated")
    },
}


@pytest.mark.parametrize("name", TOKEN_OPS)
@pytest.mark.parametrize("seed", range(4))
def test_an_op_on_tokens_gives_the_same_bits_in_any_batch(name: str, seed: int) -> None:
    ops, op = ReferenceOps(row_at_a_time=True), TOKEN_OPS[name]
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 4, (int(rng.integers(2, 40)), HIDDEN)).astype(np.float32)
    whole = op(ops, x)
    for i in range(x.shape[0]):
        assert op(ops, x[i : i + 1].copy()).tobytes() == whole[i].tobytes()
    cut = int(rng.integers(1, x.shape[0]))
    assert np.concatenate([op(ops, x[:cut]), op(ops, x[cut:])]).tobytes() == whole.tobytes()
    order = rng.permutation(x.shape[0])
    assert op(ops, x[order]).tobytes() == whole[order].tobytes()


SPECS = {
    "plain": AttentionSpec(layer=0, heads=6, kv_heads=2, head_dim=16, scale=0.25),
    "single": AttentionSpec(layer=0, heads=1, kv_heads=1, head_dim=96, scale=0.1),
    "window": AttentionSpec(layer=0, heads=6, kv_heads=3, head_dim=16, scale=0.25, window=6),
    "alibi": AttentionSpec(
        layer=0,
        heads=6,
        kv_heads=6,
        head_dim=16,
        scale=0.25,
        softcap=4.0,
        alibi_slopes=(0.5, 0.4, 0.3, 0.2, 0.1, 0.05),
    ),
}


class Stream:
    """One sequence: its vectors by position, and where its blocks lie."""

    def __init__(self, seed: int, spec: AttentionSpec, length: int) -> None:
        rng = np.random.default_rng(seed)
        kv = spec.kv_heads * spec.head_dim
        widths = (spec.heads * spec.head_dim, kv, kv)
        self.q, self.k, self.v = (
            rng.normal(0, 2, (length, width)).astype(np.float32) for width in widths
        )


def attend(
    ops: ReferenceOps,
    cache: ReferenceCache,
    rows: list[tuple[Stream, list[int], int, int]],
    spec: AttentionSpec,
    rope: RopeSpec | None,
) -> list[np.ndarray]:
    """One step of rope, store and attention for rows (stream, table, start, count)."""
    host = HostBatch(BS, tables=[[table for _, table, _, _ in rows]])
    for r, (_, _, start, count) in enumerate(rows):
        host.ids += [0] * count
        host.positions += range(start, start + count)
        host.row_of += [r] * count
        host.row_starts.append(len(host.ids))
        host.write_from.append(start)
    batch = ops.upload(host)
    q, k, v = (
        np.concatenate([getattr(s, part)[start : start + count] for s, _, start, count in rows])
        for part in "qkv"
    )
    q = ops.rope_and_store(q, k, v, cache, batch, rope, spec)
    return np.split(ops.attention(q, cache, batch, spec), host.row_starts[1:-1])


def new_cache(ops: ReferenceOps, spec: AttentionSpec) -> ReferenceCache:
    return ops.allocate_cache(CacheLayout(BS, (1,), spec.kv_heads, spec.head_dim), [POOL])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(3))
def test_rope_and_attention_give_the_same_bits_however_a_sequence_is_cut(
    name: str, seed: int
) -> None:
    spec = SPECS[name]
    rope = RopeSpec(tuple(0.5**i for i in range(spec.head_dim // 2))) if seed else None
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(1, 60, 4)]
    streams = [Stream(100 * seed + i, spec, n) for i, n in enumerate(lengths)]
    whole = []
    for stream, length in zip(streams, lengths, strict=True):
        ops = ReferenceOps(row_at_a_time=True)  # each alone, at once, in blocks 0, 1, 2 ...
        table = list(range(-(-length // BS)))
        row = (stream, table, 0, length)
        whole.append(attend(ops, new_cache(ops, spec), [row], spec, rope)[0])
    ops = ReferenceOps(row_at_a_time=True)
    cache = new_cache(ops, spec)
    free = rng.permutation(POOL).tolist()
    tables = [[free.pop() for _ in range(-(-n // BS))] for n in lengths]
    done, parts = [0] * 4, [[] for _ in range(4)]
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        chosen = [
            (i, min(int(rng.integers(1, 12)), lengths[i] - done[i]))
            for i in rng.permutation(4)
            if done[i] < lengths[i] and rng.random() < 0.7
        ]
        if not chosen:
            continue
        rows = [(streams[i], tables[i], done[i], count) for i, count in chosen]
        for (i, count), out in zip(chosen, attend(ops, cache, rows, spec, rope), strict=True):
            parts[i].append(out)
            done[i] += count
    for i in range(4):
        assert np.concatenate(parts[i]).tobytes() == whole[i].tobytes()
