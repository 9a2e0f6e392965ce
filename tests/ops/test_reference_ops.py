"""The reference ops against formulas written out once more, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from octavo.ops import AttentionSpec, CacheLayout, HostBatch, NormSpec, RawWeight, RopeSpec
from octavo.ops.reference import QUERY_CHUNK, ReferenceOps
from octavo.ops.select import select_ops
from octavo.ops.workers import Workers

BS = 4


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def raw(array: np.ndarray, name: str = "w") -> RawWeight:
    return RawWeight(name, array.shape, "f32", array, lambda: array)


def batch_of(
    rows: Sequence[tuple[int, int]], tables: Sequence[list[int]], write_from: Sequence[int] = ()
) -> HostBatch:
    """Rows as (start, count)."""
    batch = HostBatch(BS, tables=[list(tables)])
    for r, (start, count) in enumerate(rows):
        batch.ids += [0] * count
        batch.positions += range(start, start + count)
        batch.row_of += [r] * count
        batch.row_starts.append(len(batch.ids))
        batch.write_from.append(write_from[r] if write_from else start)
    return batch


def test_pack_stacks_along_outputs_and_linear_adds_the_bias(rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    a, b = floats(rng, 5, 8), floats(rng, 3, 8)
    bias_a, bias_b = floats(rng, 5), floats(rng, 3)
    weight = ops.pack([raw(a), raw(b)], [raw(bias_a), raw(bias_b)])
    x = floats(rng, 4, 8)
    expected = np.hstack([x @ a.T + bias_a, x @ b.T + bias_b])
    assert np.allclose(ops.linear(x, weight), expected, atol=1e-5)
    assert np.allclose(ReferenceOps(row_at_a_time=True).linear(x, weight), expected, atol=1e-5)


def test_pack_names_what_does_not_fit(rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    with pytest.raises(ValueError, match=r"q \(5, 8\), k \(3, 9\)"):
        ops.pack([raw(floats(rng, 5, 8), "q"), raw(floats(rng, 3, 9), "k")])
    with pytest.raises(ValueError, match=r"q.bias: 4 values for 5"):
        ops.pack([raw(floats(rng, 5, 8), "q")], [raw(floats(rng, 4), "q.bias")])


@pytest.mark.parametrize("rows", [False, True])
def test_norms(rng: np.random.Generator, rows: bool) -> None:
    ops = ReferenceOps(row_at_a_time=rows)
    x, residual, weight, bias = (floats(rng, *s) for s in ((3, 16), (3, 16), (16,), (16,)))
    total = x.astype(np.float64) + residual
    normed, summed = ops.norm(x, weight, NormSpec("rms", 1e-3, 1.0), residual)
    expected = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-3) * (weight + 1.0)
    assert np.allclose(summed, total, atol=1e-6)
    assert np.allclose(normed, expected, atol=1e-5)
    normed, summed = ops.norm(x, weight, NormSpec("layer", 1e-3), None, bias)
    centred = x - x.mean(-1, keepdims=True, dtype=np.float64)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * weight + bias
    assert summed is x
    assert np.allclose(normed, expected, atol=1e-5)


def test_activations(rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    x = np.concatenate([floats(rng, 2, 30) * 3, np.array([[-90, 90] * 15, [0.0] * 30])])
    x = x.astype(np.float32)
    formulas = {
        "silu": lambda v: v / (1 + math.exp(-v)),
        "gelu": lambda v: 0.5 * v * math.erfc(-v / math.sqrt(2)),
        "gelu_tanh": lambda v: (
            0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
        ),
        "relu": lambda v: max(v, 0.0),
    }
    for kind, formula in formulas.items():
        expected = np.vectorize(formula, otypes=[float])(x.astype(np.float64))
        assert np.allclose(ops.act(x, kind), expected, atol=2e-6), kind
        gated = ops.act(x, f"{kind}_gated")
        assert np.allclose(gated, expected[:, :15] * x[:, 15:], rtol=1e-5, atol=1e-5), kind
    with pytest.raises(ValueError, match="swish"):
        ops.act(x, "swish")


def test_add_scale_embed_and_logit_rows(rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    table = floats(rng, 20, 6)
    host = batch_of([(0, 4)], [[0]])
    host.ids, host.logit_tokens = [7, 0, 19, 7], [3, 1]
    batch = ops.upload(host)
    x = ops.embed(batch, ops.pack([raw(table)]))
    assert (x == table[[7, 0, 19, 7]]).all()
    assert (ops.logit_rows(x, batch) == table[[7, 0]]).all()
    assert np.allclose(ops.add(x, x, 0.5), 1.5 * x)
    assert (ops.add(x, x) == 2 * x).all()
    assert (ops.scale(x, 2.0) == 2 * x).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", [8, 6])
def test_rope_turns_pairs_as_complex_numbers(
    rng: np.random.Generator, interleaved: bool, rotary: int
) -> None:
    ops = ReferenceOps()
    spec = AttentionSpec(layer=1, heads=3, kv_heads=1, head_dim=8, scale=1.0)
    rope = RopeSpec(tuple(0.7**i for i in range(rotary // 2)), 1.25, interleaved)
    cache = ops.allocate_cache(CacheLayout(BS, (2,), 1, 8), [600])
    positions = [0, 1, 2, 2047, 2048]
    host = batch_of([(0, 3), (2047, 2)], [[5], list(range(40, 553))])
    q, k, v = floats(rng, 5, 24), floats(rng, 5, 8), floats(rng, 5, 8)
    got = ops.rope_and_store(q, k, v, cache, ops.upload(host), rope, spec)

    def turned(x: np.ndarray) -> np.ndarray:
        out = x.astype(np.float64).reshape(5, -1, 8)
        half = rotary // 2
        for t, position in enumerate(positions):
            for i in range(half):
                a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
                angle = position * rope.inverse_frequencies[i]
                z = (out[t, :, a] + 1j * out[t, :, b]) * np.exp(1j * angle) * 1.25
                out[t, :, a], out[t, :, b] = z.real, z.imag
        return out.reshape(x.shape)

    assert np.allclose(got, turned(q), atol=1e-3)
    where = [(5, 0), (5, 1), (5, 2), (40 + 511, 3), (40 + 512, 0)]
    stored = np.stack([cache.keys[0][1, block, offset, 0] for block, offset in where])
    assert np.allclose(stored, turned(k), atol=1e-3)
    assert (np.stack([cache.values[0][1, b, o, 0] for b, o in where]) == v).all()
    assert not cache.keys[0][0].any()  # the other layer is untouched
    assert np.count_nonzero(cache.values[0]) == v.size


def test_positions_below_write_from_are_not_written(rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    spec = AttentionSpec(layer=0, heads=1, kv_heads=1, head_dim=4, scale=1.0)
    cache = ops.allocate_cache(CacheLayout(BS, (1,), 1, 4), [8])
    host = batch_of([(2, 4), (5, 1)], [[3, 6], [1, 2]], write_from=[4, 6])
    k, v = floats(rng, 5, 4), floats(rng, 5, 4)
    ops.rope_and_store(floats(rng, 5, 4), k, v, cache, ops.upload(host), None, spec)
    flat = cache.values[0][0].reshape(-1, 4)
    assert np.flatnonzero(flat.any(-1)).tolist() == [6 * BS, 6 * BS + 1]
    assert (flat[[6 * BS, 6 * BS + 1]] == v[2:4]).all()


def dense_attention(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, start: int, spec: AttentionSpec
) -> np.ndarray:
    """q (count, heads, d) at positions from `start`; keys, values (positions, kv_heads, d)."""
    out = np.zeros(q.shape)
    for t in range(q.shape[0]):
        position = start + t
        first = max(0, position + 1 - spec.window) if spec.window else 0
        for head in range(spec.heads):
            kv = head // (spec.heads // spec.kv_heads)
            seen = slice(first, position + 1)
            scores = keys[seen, kv].astype(np.float64) @ q[t, head] * spec.scale
            if spec.softcap:
                scores = spec.softcap * np.tanh(scores / spec.softcap)
            if spec.alibi_slopes:
                scores += spec.alibi_slopes[head] * (np.arange(first, position + 1) - position)
            share = np.exp(scores - scores.max())
            out[t, head] = share / share.sum() @ values[seen, kv]
    return out


VARIANTS = {
    "plain": {},
    "window": {"window": 5},
    "alibi": {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)},
    "softcap": {"softcap": 2.0},
    "all": {"window": 7, "alibi_slopes": (0.5, 0.25, 0.125, 0.0625), "softcap": 3.0},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", [False, True])
def test_attention_over_scattered_blocks_is_dense_attention(
    rng: np.random.Generator, variant: str, rows: bool
) -> None:
    ops = ReferenceOps(row_at_a_time=rows)
    spec = AttentionSpec(layer=1, heads=4, kv_heads=2, head_dim=8, scale=0.6, **VARIANTS[variant])
    shapes = [(0, QUERY_CHUNK + 9), (13, 1), (7, 6), (0, 1)]
    blocks = rng.permutation(200)
    tables = []
    for start, count in shapes:
        need = -(-(start + count) // BS)
        tables.append(blocks[:need].tolist())
        blocks = blocks[need:]
    cache = ops.allocate_cache(CacheLayout(BS, (2,), 2, 8), [200])
    cache.keys[0][:] = np.nan  # whatever is read and was not written shows
    cache.values[0][:] = np.nan
    known = []
    for (start, count), table in zip(shapes, tables, strict=True):
        keys, values = floats(rng, start + count, 2, 8), floats(rng, start + count, 2, 8)
        known.append((keys, values))
        for p in range(start):  # the past is in the cache; the new tokens are stored by the op
            cache.keys[0][1, table[p // BS], p % BS] = keys[p]
            cache.values[0][1, table[p // BS], p % BS] = values[p]
    new = [
        np.concatenate([kv[i][start:] for kv, (start, _) in zip(known, shapes, strict=True)])
        for i in (0, 1)
    ]
    batch = ops.upload(batch_of(shapes, tables))
    total = sum(count for _, count in shapes)
    q = floats(rng, total, 32)
    q = ops.rope_and_store(
        q, new[0].reshape(total, -1), new[1].reshape(total, -1), cache, batch, None, spec
    )
    got = ops.attention(q, cache, batch, spec).reshape(total, 4, 8)
    begin = 0
    for (start, count), (keys, values) in zip(shapes, known, strict=True):
        part = q[begin : begin + count].reshape(count, 4, 8)
        expected = dense_attention(part, keys, values, start, spec)
        assert np.allclose(got[begin : begin + count], expected, atol=1e-5)
        begin += count


def test_attention_reads_the_cache_and_not_the_tokens_own_vectors(
    rng: np.random.Generator,
) -> None:
    ops = ReferenceOps()
    spec = AttentionSpec(layer=0, heads=1, kv_heads=1, head_dim=4, scale=1.0)
    cache = ops.allocate_cache(CacheLayout(BS, (1,), 1, 4), [2])
    cache.values[0][0, 1, 0] = 7.0
    batch = ops.upload(batch_of([(0, 1)], [[1]], write_from=[1]))
    q = ops.rope_and_store(
        floats(rng, 1, 4), floats(rng, 1, 4), floats(rng, 1, 4), cache, batch, None, spec
    )
    assert ops.attention(q, cache, batch, spec).tolist() == [[7.0] * 4]


def test_copies_read_every_source_before_they_write(rng: np.random.Generator) -> None:
    ops = ReferenceOps()
    cache = ops.allocate_cache(CacheLayout(BS, (2, 1), 1, 4), [6, 3])
    for pool in (*cache.keys, *cache.values):
        pool[:] = floats(rng, *pool.shape)
    before = [pool.copy() for pool in (*cache.keys, *cache.values)]
    ops.copy_blocks(cache, [(0, 1, 2), (0, 2, 1), (0, 2, 5), (1, 0, 2)])
    now = [*cache.keys, *cache.values]
    for i in (0, 2):
        assert (now[i] == before[i][:, [0, 2, 1, 3, 4, 2]]).all()
    for i in (1, 3):
        assert (now[i] == before[i][:, [0, 1, 0]]).all()


def test_what_cannot_be_done_is_refused_with_the_numbers() -> None:
    ops = ReferenceOps()
    with pytest.raises(ValueError, match="position 9, but its block table covers 8"):
        ops.upload(batch_of([(8, 2)], [[0, 1]]))
    with pytest.raises(ValueError, match="bfloat16"):
        ops.allocate_cache(CacheLayout(BS, (1,), 1, 4, "bfloat16"), [2])
    with pytest.raises(ValueError, match="2 pools for 1"):
        ops.allocate_cache(CacheLayout(BS, (1,), 1, 4), [2, 2])
    with pytest.raises(ValueError, match=r"'tpu'.*auto, cpu, reference, cuda"):
        select_ops("tpu")


def test_the_identity_tells_the_mode_apart() -> None:
    identities = {
        select_ops("reference", threads=t, row_at_a_time=r).identity
        for t in (1, 2)
        for r in (False, True)
    }
    assert len(identities) == 2


@pytest.mark.parametrize("rows_alone", [False, True])
def test_a_product_does_not_depend_on_the_number_of_threads(rows_alone: bool) -> None:
    rng = np.random.default_rng(4)
    matrix = rng.standard_normal((7001, 96), np.float32)
    x = rng.standard_normal((19, 96), np.float32)
    results = []
    for threads in (1, 2, 3, 7):
        ops = ReferenceOps(threads=threads, row_at_a_time=rows_alone)
        weight = ops.pack([RawWeight("w", matrix.shape, "f32", matrix, lambda: matrix)])
        results.append(ops.linear(x, weight))
    assert all(np.array_equal(results[0], other) for other in results[1:])
    assert np.allclose(results[0], x @ matrix.T, atol=1e-4)


def test_workers_do_every_piece_once_and_pass_errors_on() -> None:
    for threads in (1, 2, 5):
        workers = Workers(threads)
        done: list[int] = []
        workers.run(100, done.append)
        assert sorted(done) == list(range(100))
        with pytest.raises(ZeroDivisionError):
            workers.run(10, lambda index: 1 // (5 - index))
        workers.run(3, done.append)
        assert len(done) == 103
