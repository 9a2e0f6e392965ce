"""The compiled KV cache, rope and attention against their numpy twins, and to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops import AttentionSpec, CacheLayout, HostBatch, RopeSpec, native
from octavo.ops.reference import ReferenceOps
from support import native_isas

pytestmark = pytest.mark.skipif(
    not native.native_available(), reason=native.native_reason() or "no kernels"
)

BS, POOL = 16, 160
DTYPES = ["float32", "bfloat16", "int8"]
PAIRED = native.build_info().get("isa") == "avx512bf16"
"""There bf16 queries and weights are rounded to bf16 too."""


def cpu(threads: int = 1) -> Any:
    from octavo.ops.cpu import CpuOps

    return CpuOps(threads=threads)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """What a cache of `dtype` holds of x (..., head_dim)."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        up = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return (up << 16).astype(np.uint32).view(np.float32)
    if dtype == "int8":
        scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
        return np.rint(x / np.where(scale > 0, scale, 1)) * scale
    return x


def tolerance(dtype: str) -> float:
    return 3e-2 if PAIRED and dtype == "bfloat16" else 1e-5


class Stream:
    """One sequence: its vectors by position."""

    def __init__(self, seed: int, spec: AttentionSpec, length: int) -> None:
        rng = np.random.default_rng(seed)
        kv = spec.kv_heads * spec.head_dim
        widths = (spec.heads * spec.head_dim, kv, kv)
        self.length = length
        self.q, self.k, self.v = (
            rng.normal(0, 1, (length, width)).astype(np.float32) for width in widths
        )


Part = tuple[Stream, list[int], int, int]
"""A row: the stream, its table, start, count."""


def host_batch(parts: Sequence[Part], write_from: Sequence[int] | None = None) -> HostBatch:
    host = HostBatch(BS, tables=[[table for _, table, _, _ in parts]])
    for r, (_, _, start, count) in enumerate(parts):
        host.ids += [0] * count
        host.positions += range(start, start + count)
        host.row_of += [r] * count
        host.row_starts.append(len(host.ids))
        host.write_from.append(start if write_from is None else write_from[r])
    return host


def step(
    ops: Any,
    cache: Any,
    parts: Sequence[Part],
    spec: AttentionSpec,
    rope: RopeSpec | None,
    dtype: str = "float32",
    write_from: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Rope, store and attention of the parts in one batch. The reference's cache is rounded."""
    host = host_batch(parts, write_from)
    batch = ops.upload(host)
    q, k, v = (
        np.concatenate([getattr(s, name)[start : start + count] for s, _, start, count in parts])
        for name in "qkv"
    )
    q = ops.rope_and_store(q, k, v, cache, batch, rope, spec)
    if isinstance(ops, ReferenceOps):
        cache.keys[0][:] = rounded(cache.keys[0], dtype)
        cache.values[0][:] = rounded(cache.values[0], dtype)
    return np.split(ops.attention(q, cache, batch, spec), host.row_starts[1:-1])


def new_cache(ops: Any, spec: AttentionSpec, dtype: str = "float32", block: int = BS) -> Any:
    layers = (spec.layer + 1,)
    layout = CacheLayout(block, layers, spec.kv_heads, spec.head_dim, dtype)
    return ops.allocate_cache(layout, [POOL])


def tables(rng: np.random.Generator, streams: Sequence[Stream]) -> list[list[int]]:
    free = rng.permutation(POOL).tolist()
    return [[free.pop() for _ in range(-(-s.length // BS))] for s in streams]


def rope_of(dims: int, interleaved: bool = False, scale: float = 1.0) -> RopeSpec:
    return RopeSpec(tuple(1000.0 ** (-2 * i / dims) for i in range(dims // 2)), scale, interleaved)


def compare(
    spec: AttentionSpec, rope: RopeSpec | None, dtype: str, lengths: Sequence[int], seed: int = 0
) -> None:
    """Whole sequences in one batch, then one token more of each."""
    rng = np.random.default_rng(seed)
    streams = [Stream(seed + i, spec, n + 1) for i, n in enumerate(lengths)]
    blocks = tables(rng, streams)
    twin, ops = ReferenceOps(), cpu(2)
    theirs, ours = new_cache(twin, spec), new_cache(ops, spec, dtype)
    firsts = [(s, t, 0, n) for s, t, n in zip(streams, blocks, lengths, strict=True)]
    seconds = [(s, t, n, 1) for s, t, n in zip(streams, blocks, lengths, strict=True)]
    for parts in (firsts, seconds):
        wanted = step(twin, theirs, parts, spec, rope, dtype)
        got = step(ops, ours, parts, spec, rope)
        for a, b in zip(wanted, got, strict=True):
            np.testing.assert_allclose(b, a, atol=tolerance(dtype), rtol=tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [32, 48, 64, 72, 80, 96, 128, 160, 192, 256, 20])
def test_every_head_size_agrees_with_the_reference(head_dim: int, dtype: str) -> None:
    spec = AttentionSpec(0, 4, 2, head_dim, head_dim**-0.5)
    compare(spec, rope_of(head_dim), dtype, [1, 15, 16, 17, 63, 64, 130])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 37])
def test_every_number_of_grouped_heads_agrees_with_the_reference(group: int, dtype: str) -> None:
    compare(AttentionSpec(1, 2 * group, 2, 32, 0.2), rope_of(32), dtype, [3, 70, 129], seed=group)


VARIANTS: dict[str, tuple[AttentionSpec, RopeSpec | None]] = {
    "no rope": (AttentionSpec(0, 6, 2, 32, 0.2), None),
    "partial rope": (AttentionSpec(0, 6, 2, 32, 0.2), rope_of(20)),
    "interleaved": (AttentionSpec(0, 6, 2, 32, 0.2), rope_of(32, interleaved=True)),
    "partial, interleaved, scaled": (AttentionSpec(0, 6, 2, 32, 0.2), rope_of(12, True, 1.3)),
    "window": (AttentionSpec(0, 6, 2, 32, 0.2, window=37), rope_of(32)),
    "window of one": (AttentionSpec(0, 6, 2, 32, 0.2, window=1), rope_of(32)),
    "window of two steps": (AttentionSpec(0, 6, 2, 32, 0.2, window=128), rope_of(32)),
    "softcap": (AttentionSpec(0, 6, 2, 32, 0.2, softcap=3.0), rope_of(32)),
    "alibi": (
        AttentionSpec(0, 6, 2, 32, 0.2, alibi_slopes=(0.5, 0.25, 0.1, 0.05, 0.02, 0.01)),
        None,
    ),
    "all": (
        AttentionSpec(1, 4, 4, 40, 0.3, window=90, softcap=5.0, alibi_slopes=(0.5, 0.2, 0.1, 0.0)),
        rope_of(24),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_agrees_with_the_reference(name: str, dtype: str) -> None:
    spec, rope = VARIANTS[name]
    compare(spec, rope, dtype, [1, 16, 40, 200, 530])


def test_sequences_longer_than_a_split_agree_with_the_reference() -> None:
    compare(AttentionSpec(0, 2, 1, 32, 0.2), rope_of(32), "bfloat16", [1030, 511, 512])


def test_rope_gives_the_bits_of_the_reference() -> None:
    for rope in (rope_of(32), rope_of(20), rope_of(12, True, 1.3)):
        spec = AttentionSpec(0, 3, 1, 32, 0.2)
        part = (Stream(0, spec, 50), [3, 1, 0, 2], 0, 50)
        args = (part[0].q, part[0].k, part[0].v)
        found = []
        for ops in (ReferenceOps(), cpu()):
            batch = ops.upload(host_batch([part]))
            found.append(ops.rope_and_store(*args, new_cache(ops, spec), batch, rope, spec))
        assert found[0].tobytes() == found[1].tobytes()


def test_slices_of_a_fused_product_are_taken_as_they_are() -> None:
    spec, ops = AttentionSpec(0, 6, 2, 32, 0.2), cpu()
    stream = Stream(0, spec, 40)
    fused = np.concatenate([stream.q, stream.k, stream.v], axis=1)
    host = host_batch([(stream, [0, 1, 2], 0, 40)])
    outs = []
    for q, k, v in (
        (stream.q, stream.k, stream.v),
        (fused[:, :192], fused[:, 192:256], fused[:, 256:]),
    ):
        for rope in (None, rope_of(32)):
            cache, batch = new_cache(ops, spec), ops.upload(host)
            turned = ops.rope_and_store(q, k, v, cache, batch, rope, spec)
            outs.append(ops.attention(turned, cache, batch, spec))
    assert outs[0].tobytes() == outs[2].tobytes() and outs[1].tobytes() == outs[3].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_below_write_from_stays_as_it_was(dtype: str) -> None:
    spec, ops = AttentionSpec(0, 6, 2, 32, 0.2), cpu()
    stream, other = Stream(0, spec, 40), Stream(1, spec, 40)
    table = [4, 9, 2]
    cache = new_cache(ops, spec, dtype)
    whole = step(ops, cache, [(stream, table, 0, 40)], spec, None)[0]
    mixed = Stream(0, spec, 40)
    mixed.k[:33], mixed.v[:33] = other.k[:33], other.v[:33]  # to be ignored
    again = step(ops, cache, [(mixed, table, 0, 40)], spec, None, write_from=[33])[0]
    assert again.tobytes() == whole.tobytes()
    last = step(ops, cache, [(mixed, table, 39, 1)], spec, None, write_from=[40])[0]
    assert last.tobytes() == whole[39:].tobytes()


def cut_at_random(
    rng: np.random.Generator, spec: AttentionSpec, rope: RopeSpec | None, dtype: str, threads: int
) -> None:
    """Sequences one by one and whole, then in ragged chunks with others: the same bits."""
    lengths = [int(n) for n in rng.integers(1, 90, 3)] + [int(rng.integers(100, 620))]
    streams = [Stream(int(rng.integers(1 << 30)), spec, n) for n in lengths]
    whole = []
    for stream in streams:
        alone = cpu()
        table = list(range(-(-stream.length // BS)))
        part = (stream, table, 0, stream.length)
        whole.append(step(alone, new_cache(alone, spec, dtype), [part], spec, rope)[0])
    ops = cpu(threads)
    cache = new_cache(ops, spec, dtype)
    blocks = tables(rng, streams)
    done, found = [0] * 4, [[] for _ in streams]
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        chosen = [
            (i, min(int(rng.choice([1, 2, 7, 40, 300])), lengths[i] - done[i]))
            for i in rng.permutation(4)
            if done[i] < lengths[i] and rng.random() < 0.7
        ]
        if not chosen:
            continue
        parts = [(streams[i], blocks[i], done[i], count) for i, count in chosen]
        for (i, count), out in zip(chosen, step(ops, cache, parts, spec, rope), strict=True):
            found[i].append(out)
            done[i] += count
    for i in range(4):
        assert np.concatenate(found[i]).tobytes() == whole[i].tobytes()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    variant=st.sampled_from(sorted(VARIANTS)),
    dtype=st.sampled_from(DTYPES),
    threads=st.sampled_from([1, 2, 3]),
)
def test_neither_chunks_nor_neighbours_blocks_or_threads_change_a_bit(
    seed: int, variant: str, dtype: str, threads: int
) -> None:
    cut_at_random(np.random.default_rng(seed), *VARIANTS[variant], dtype, threads)


@pytest.mark.parametrize("group", [1, 3, 7, 16])
@pytest.mark.parametrize("head_dim", [64, 72, 256])
def test_shapes_of_any_kind_keep_their_bits(group: int, head_dim: int) -> None:
    spec = AttentionSpec(0, 2 * group, 2, head_dim, 0.1)
    cut_at_random(np.random.default_rng(group), spec, None, "bfloat16", 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_token_does_not_see_may_be_anything(dtype: str) -> None:
    """Blocks that others left behind, and later tokens that overflowed."""
    spec, ops = AttentionSpec(0, 6, 2, 32, 0.2, window=33), cpu()
    good, bad = Stream(0, spec, 75), Stream(1, spec, 80)
    bad.k[:], bad.v[:] = np.nan, np.inf
    table, clean = [5, 3, 1, 0, 2], new_cache(ops, spec, dtype)
    wanted = step(ops, clean, [(good, table, 0, 75)], spec, None)[0]
    cache = new_cache(ops, spec, dtype)
    step(ops, cache, [(bad, table, 0, 80)], spec, None)
    assert step(ops, cache, [(good, table, 0, 75)], spec, None)[0].tobytes() == wanted.tobytes()
    step(ops, cache, [(bad, table, 0, 41)], spec, None)  # before the window of the last token
    last = step(ops, cache, [(good, table, 74, 1)], spec, None)[0]
    assert last.tobytes() == wanted[74:].tobytes()
    spoiled = Stream(0, spec, 75)
    spoiled.k[60:], spoiled.v[60:] = np.inf, np.nan
    got = step(ops, new_cache(ops, spec, dtype), [(spoiled, table, 0, 75)], spec, None)[0]
    assert got[:60].tobytes() == wanted[:60].tobytes()
    assert not np.isfinite(got[60:]).any()


def test_sinks_take_weight_and_give_no_value() -> None:
    spec, ops = AttentionSpec(0, 6, 2, 32, 0.2), cpu(2)
    stream = Stream(0, spec, 700)
    module = native.load_native()[0]
    pool, cache = module.Pool(2), new_cache(ops, spec)
    batch = ops.upload(host_batch([(stream, list(range(44)), 0, 700)]))
    ops.rope_and_store(stream.q, stream.k, stream.v, cache, batch, None, spec)
    sinks = np.linspace(-2, 8, 6).astype(np.float32)
    call = (0, 0, spec.scale, 0, 0.0, None)
    got = module.attention(stream.q, cache, batch.kv, *call, sinks, pool).reshape(700, 6, 32)
    for t in (0, 5, 511, 512, 699):
        for h in range(6):
            keys = stream.k.reshape(700, 2, 32)[: t + 1, h // 3].astype(np.float64)
            scores = keys @ stream.q.reshape(700, 6, 32)[t, h] * spec.scale
            weights = np.exp(scores - sinks[h])
            mixed = weights @ stream.v.reshape(700, 2, 32)[: t + 1, h // 3] / (1 + weights.sum())
            np.testing.assert_allclose(got[t, h], mixed, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_copied_as_if_all_were_read_first(dtype: str) -> None:
    spec, ops = AttentionSpec(1, 2, 2, 32, 0.2), cpu(2)
    streams = [Stream(i, spec, BS) for i in range(3)]
    cache = new_cache(ops, spec, dtype)
    parts = [(s, [i], 0, BS) for i, s in enumerate(streams)]
    before = step(ops, cache, parts, spec, None)
    ops.copy_blocks(cache, [(0, 0, 1), (0, 1, 2), (0, 2, 0), (0, 0, 7), (0, 5, 5)])

    def read(block: int, stream: Stream) -> bytes:
        part = (stream, [block], 0, BS)
        return step(ops, cache, [part], spec, None, write_from=[BS])[0].tobytes()

    for block, source in ((1, 0), (2, 1), (0, 2), (7, 0)):
        assert read(block, streams[source]) == before[source].tobytes()
    ops.copy_blocks(cache, [(0, 1, 8), (0, 2, 9)])
    assert read(8, streams[0]) == before[0].tobytes()
    assert read(9, streams[1]) == before[1].tobytes()
    for wrong in ((1, 0, 0), (0, POOL, 0), (0, 0, POOL)):
        with pytest.raises(ValueError, match=r"KV group|pool of"):
            ops.copy_blocks(cache, [wrong])
    with pytest.raises(TypeError):
        ops.copy_blocks(cache, [(0, -1, 0)])


def test_an_empty_batch_gives_empty_arrays() -> None:
    spec, ops = AttentionSpec(0, 2, 2, 32, 0.2), cpu(2)
    cache, batch = new_cache(ops, spec), ops.upload(HostBatch(BS, tables=[[]]))
    q = np.zeros((0, 64), np.float32)
    assert ops.rope_and_store(q, q, q, cache, batch, rope_of(32), spec).shape == (0, 64)
    assert ops.attention(q, cache, batch, spec).shape == (0, 64)
    assert ops.logit_rows(q, batch).shape == (0, 64)
    ops.copy_blocks(cache, [])


def test_blocks_may_be_any_multiple_of_sixteen() -> None:
    spec, ops = AttentionSpec(0, 2, 2, 32, 0.2), cpu()
    stream = Stream(0, spec, 100)
    outs = []
    for block in (16, 32, 48, 128):
        host = host_batch([(stream, [3, 1, 2, 0, 5, 4, 6], 0, 100)])
        host.block_size = block
        cache, batch = new_cache(ops, spec, block=block), ops.upload(host)
        q = ops.rope_and_store(stream.q, stream.k, stream.v, cache, batch, None, spec)
        outs.append(ops.attention(q, cache, batch, spec).tobytes())
    assert len(set(outs)) == 1


def test_logit_rows_come_in_the_order_they_are_wanted() -> None:
    ops = cpu()
    host = HostBatch(BS, [1, 2, 3], [0, 1, 0], [0, 0, 1], [0, 2, 3], [[[0], [1]]], [0, 0], [2, 0])
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert ops.logit_rows(x, ops.upload(host)).tolist() == [[4.0, 5.0], [0.0, 1.0]]
    host.logit_tokens = [3]
    with pytest.raises(ValueError, match="not among the 3"):
        ops.upload(host)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tables": [[[0]]]}, "covers 16 positions"),
        ({"tables": [[]]}, "one block table for each row"),
        ({"positions": list(range(19))}, "19 positions for 20 tokens"),
        ({"positions": [*range(19), 25]}, "consecutive"),
        ({"positions": list(range(-1, 19))}, "consecutive"),
        ({"row_starts": [0, 21]}, "row_starts"),
        ({"row_starts": [0, 30, 20], "write_from": [0, 0]}, "must not fall"),
        ({"row_starts": []}, "row_starts"),
        ({"write_from": []}, "write_from"),
        ({"block_size": 0}, "no tokens"),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(change: Any, words: str) -> None:
    spec = AttentionSpec(0, 2, 2, 32, 0.2)
    host = replace(host_batch([(Stream(0, spec, 20), [0, 1], 0, 20)]), **change)
    with pytest.raises(ValueError, match=words):
        cpu().upload(host)


def test_shapes_layers_and_blocks_outside_the_cache_are_refused() -> None:
    spec, ops = AttentionSpec(0, 4, 2, 32, 0.2), cpu()
    stream = Stream(0, spec, 20)
    cache = new_cache(ops, spec)
    q, k, v = stream.q, stream.k, stream.v

    def both(
        table: list[int], spec: AttentionSpec = spec, q: Any = q, k: Any = k, rope: Any = None
    ) -> None:
        batch = ops.upload(host_batch([(stream, table, 0, 20)]))
        ops.rope_and_store(q, k, v, cache, batch, rope, spec)

    for table in ([0, POOL], [-1, 0]):
        with pytest.raises(ValueError, match="outside the pool of 160"):
            both(table)
        batch = ops.upload(host_batch([(stream, table, 0, 20)]))
        with pytest.raises(ValueError, match="outside the pool of 160"):
            ops.attention(q, cache, batch, spec)
    with pytest.raises(ValueError, match="layer 1 of"):
        both([0, 1], replace(spec, layer=1))
    with pytest.raises(ValueError, match="KV group 1 of"):
        both([0, 1], replace(spec, group=1))
    with pytest.raises(ValueError, match="expected"):
        both([0, 1], q=q[:19])
    with pytest.raises(ValueError, match="expected"):
        both([0, 1], k=k[:, :32])
    with pytest.raises(ValueError, match="not a multiple"):
        both([0, 1], q=q[:, :96].copy())
    with pytest.raises(ValueError, match="adjacent columns"):
        both([0, 1], q=np.asfortranarray(q))
    with pytest.raises(ValueError, match="rope of 34 dimensions"):
        both([0, 1], rope=rope_of(34))
    with pytest.raises(TypeError):
        both([0, 1], q=q.astype(np.float64))
    batch = ops.upload(replace(host_batch([(stream, [0, 1], 0, 20)]), block_size=32))
    with pytest.raises(ValueError, match="blocks of 32 tokens"):
        ops.attention(q, cache, batch, spec)
    batch = ops.upload(host_batch([(stream, [0, 1], 0, 20)]))
    with pytest.raises(ValueError, match="one slope for each head"):
        ops.attention(q, cache, batch, replace(spec, alibi_slopes=(0.1,)))


@pytest.mark.parametrize(
    ("layout", "blocks", "words"),
    [
        (CacheLayout(20, (1,), 2, 32), [4], "multiple of 16"),
        (CacheLayout(0, (1,), 2, 32), [4], "multiple of 16"),
        (CacheLayout(16, (1,), 2, 1024), [4], "1 to 512"),
        (CacheLayout(16, (1,), 0, 32), [4], "KV heads"),
        (CacheLayout(16, (1,), 2, 32, "float16"), [4], "not float16"),
        (CacheLayout(16, (1, 1), 2, 32), [4], "1 pools for 2"),
        (CacheLayout(16, (1,), 2, 32), [2**40], "a pool of"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(
    layout: CacheLayout, blocks: list[int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        cpu().allocate_cache(layout, blocks)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)
