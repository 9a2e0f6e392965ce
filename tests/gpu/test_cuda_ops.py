"""Each op of the torch backend against the numpy reference, on random ragged batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (make oracle has it)")

from octavo.ops import (  # noqa: E402
    AttentionSpec,
    CacheLayout,
    HostBatch,
    NormSpec,
    RawWeight,
    RopeSpec,
    RoutingSpec,
    SampleRow,
)
from octavo.ops.cuda import CudaOps  # noqa: E402
from octavo.ops.cuda_attention import QUERY_CHUNK  # noqa: E402
from octavo.ops.reference import ReferenceOps  # noqa: E402
from support import expert_cases  # noqa: E402
from support.ragged_rows import BLOCK, POOL, RaggedRows  # noqa: E402

CUDA = torch.cuda.is_available()
TRITON = find_spec("triton") is not None and (CUDA or os.environ.get("TRITON_INTERPRET") == "1")
KINDS = [
    False,
    pytest.param(
        True, marks=pytest.mark.skipif(not TRITON, reason="no Triton, or no GPU to run it on")
    ),
]


@pytest.fixture(params=KINDS, ids=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> CudaOps:
    return CudaOps(triton=request.param)


@pytest.fixture
def plain() -> CudaOps:
    return CudaOps(triton=False)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def raw(array: np.ndarray, name: str = "w", form: str = "f32") -> RawWeight:
    return RawWeight(name, array.shape, form, array, lambda: array)


def there(ops: CudaOps, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(ops.device)


def near(got: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-4) -> bool:
    return got.dtype == torch.float32 and np.allclose(
        got.cpu().numpy(), expected, rtol=tolerance, atol=tolerance
    )


def test_products_of_fused_weights_with_biases(plain: CudaOps, rng: np.random.Generator) -> None:
    twin = ReferenceOps()
    for outputs, inputs, rows in ((5, 8, 4), (33, 17, 1), (64, 96, 0), (1, 1, 7)):
        parts = [raw(floats(rng, outputs, inputs)), raw(floats(rng, 3, inputs))]
        biases = [raw(floats(rng, outputs)), raw(floats(rng, 3))]
        x = floats(rng, rows, inputs)
        for bias in ([], biases):
            expected = twin.linear(x, twin.pack(parts, bias))
            got = plain.linear(there(plain, x), plain.pack(parts, bias))
            assert near(got, expected)


def test_weights_from_a_read_only_map_are_taken(plain: CudaOps, rng: np.random.Generator) -> None:
    array = floats(rng, 6, 8)
    array.flags.writeable = False
    assert near(plain.pack([raw(array)]).matrix, array, 0)
    array[0].flags.writeable = False
    assert near(plain.vector(raw(array[0])), array[0], 0)


def test_bfloat16_weights_round_and_say_so(rng: np.random.Generator) -> None:
    ops = CudaOps(dtype="bfloat16", triton=False)
    array, bias, x = floats(rng, 40, 96), floats(rng, 40), floats(rng, 7, 96)
    weight = ops.pack([raw(array)], [raw(bias)])
    assert weight.matrix.dtype == torch.bfloat16
    expected = x @ array.T + bias
    error = ops.linear(there(ops, x), weight).cpu().numpy() - expected
    assert 0 < np.abs(error).max() < 0.02 * np.abs(expected).max()
    ops.pack([raw(array)])
    assert ops.notes == ["float32 weights are rounded to bfloat16"]
    assert CudaOps(dtype="auto").pack([raw(array, form="bf16")]).matrix.dtype == torch.bfloat16


def test_what_cannot_be_packed_is_named(plain: CudaOps, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match=r"q \(5, 8\), k \(3, 9\)"):
        plain.pack([raw(floats(rng, 5, 8), "q"), raw(floats(rng, 3, 9), "k")])
    with pytest.raises(ValueError, match=r"q.bias: 4 values for 5"):
        plain.pack([raw(floats(rng, 5, 8), "q")], [raw(floats(rng, 4), "q.bias")])
    with pytest.raises(ValueError, match=r"'float8'.*bfloat16"):
        CudaOps(dtype="float8")


@pytest.mark.parametrize("width", [1, 16, 37, 300])
def test_norms(ops: CudaOps, rng: np.random.Generator, width: int) -> None:
    twin = ReferenceOps()
    x, residual = floats(rng, 6, width), floats(rng, 6, width)
    weight, bias = floats(rng, width), floats(rng, width)
    for spec in (NormSpec("rms", 1e-3), NormSpec("rms", 1e-6, 1.0), NormSpec("layer", 1e-3)):
        for added in (None, residual):
            for shift in (None, bias):
                expected, total = twin.norm(x, weight, spec, added, shift)
                normed, summed = ops.norm(
                    there(ops, x),
                    there(ops, weight),
                    spec,
                    None if added is None else there(ops, added),
                    None if shift is None else there(ops, shift),
                )
                assert near(normed, expected) and near(summed, total, 0)


def test_activations_add_and_scale(plain: CudaOps, rng: np.random.Generator) -> None:
    twin = ReferenceOps()
    x = np.concatenate([3 * floats(rng, 3, 30), [[-90, 90] * 15, [0.0] * 30]]).astype(np.float32)
    for kind in ("silu", "gelu", "gelu_tanh", "relu"):
        for name in (kind, f"{kind}_gated"):
            assert near(plain.act(there(plain, x), name), twin.act(x, name)), name
    with pytest.raises(ValueError, match="swish"):
        plain.act(there(plain, x), "swish")
    assert near(plain.add(there(plain, x), there(plain, x), 0.3), twin.add(x, x, 0.3))
    assert near(plain.scale(there(plain, x), 0.3), twin.scale(x, 0.3))


ATTENTION = {
    "plain": (6, 2, 16, {}),
    "one head": (1, 1, 40, {}),
    "a head each": (3, 3, 8, {}),
    "window": (6, 3, 16, {"window": 6}),
    "window of a block": (4, 2, 16, {"window": BLOCK}),
    "softcap": (4, 4, 16, {"softcap": 2.0}),
    "alibi": (4, 2, 16, {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)}),
    "all": (4, 1, 24, {"window": 7, "softcap": 3.0, "alibi_slopes": (0.5, 0.2, 0.1, 0.05)}),
}
ROPES: dict[str, Callable[[int], RopeSpec | None]] = {
    "none": lambda dim: None,
    "whole": lambda dim: RopeSpec(tuple(0.6**i for i in range(dim // 2))),
    "part, interleaved": lambda dim: RopeSpec((1.0, 0.3, 0.01), 1.25, interleaved=True),
}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("name", ATTENTION)
def test_rope_cache_and_attention_of_ragged_rows(plain: CudaOps, name: str, rope: str) -> None:
    """The second KV group's second layer, so that group and layer both count."""
    heads, kv_heads, dim, extra = ATTENTION[name]
    spec = AttentionSpec(1, heads, kv_heads, dim, dim**-0.5, group=1, **extra)
    layout, turn = CacheLayout(BLOCK, (1, 2), kv_heads, dim), ROPES[rope](dim)
    twin = ReferenceOps()
    caches = plain.allocate_cache(layout, [3, POOL]), twin.allocate_cache(layout, [3, POOL])
    for seed in range(3):
        rows = RaggedRows.draw(np.random.default_rng(seed))
        while (host := rows.step(groups=2)) is not None:
            q, k, v = rows.vectors(len(host.ids), spec)
            batches = plain.upload(host), twin.upload(host)
            fused = there(plain, np.concatenate([q, k, v], axis=1))
            parts = fused.split([q.shape[1], k.shape[1], v.shape[1]], dim=1)
            got = plain.rope_and_store(*parts, caches[0], batches[0], turn, spec)
            expected = twin.rope_and_store(q, k, v, caches[1], batches[1], turn, spec)
            assert near(got, expected)
            assert near(
                plain.attention(got, caches[0], batches[0], spec),
                twin.attention(expected, caches[1], batches[1], spec),
            )
    for got, expected in zip(
        [*caches[0].keys, *caches[0].values], [*caches[1].keys, *caches[1].values], strict=True
    ):
        assert near(got, expected)
    assert not caches[0].keys[1][0].any() and not caches[0].keys[0].any()


def test_prompts_longer_than_a_chunk_of_queries(plain: CudaOps, rng: np.random.Generator) -> None:
    count = QUERY_CHUNK + 37
    spec = AttentionSpec(0, 4, 2, 8, 0.3, window=50)
    layout, twin = CacheLayout(BLOCK, (1,), 2, 8), ReferenceOps()
    host = HostBatch(BLOCK, [0] * count, list(range(count)), [0] * count, [0, count])
    host.tables, host.write_from = [[list(range(POOL))]], [0]
    q, k, v = (floats(rng, count, width) for width in (32, 16, 16))
    answers = []
    for one, send in ((plain, lambda a: there(plain, a)), (twin, lambda a: a)):
        cache, batch = one.allocate_cache(layout, [POOL]), one.upload(host)
        queries = one.rope_and_store(send(q), send(k), send(v), cache, batch, None, spec)
        answers.append(one.attention(queries, cache, batch, spec))
    assert near(*answers)


def test_positions_below_write_from_are_not_written(
    plain: CudaOps, rng: np.random.Generator
) -> None:
    spec = AttentionSpec(layer=0, heads=1, kv_heads=1, head_dim=4, scale=1.0)
    cache = plain.allocate_cache(CacheLayout(BLOCK, (1,), 1, 4), [8])
    host = HostBatch(BLOCK, [0] * 5, [2, 3, 4, 5, 5], [0, 0, 0, 0, 1], [0, 4, 5])
    host.tables, host.write_from = [[[3, 6], [1, 2]]], [4, 6]
    x = floats(rng, 5, 4)
    sent = there(plain, x)
    plain.rope_and_store(sent, sent, sent, cache, plain.upload(host), None, spec)
    flat = cache.values[0][0].view(-1, 4).cpu().numpy()
    assert np.flatnonzero(flat.any(-1)).tolist() == [6 * BLOCK, 6 * BLOCK + 1]
    assert (flat[[6 * BLOCK, 6 * BLOCK + 1]] == x[2:4]).all()


def test_what_a_block_held_before_is_never_read(plain: CudaOps, rng: np.random.Generator) -> None:
    spec = AttentionSpec(layer=0, heads=2, kv_heads=1, head_dim=4, scale=1.0)
    cache = plain.allocate_cache(CacheLayout(BLOCK, (1,), 1, 4), [3])
    cache.keys[0].fill_(torch.nan)
    cache.values[0].fill_(torch.nan)
    host = HostBatch(BLOCK, [0] * 6, [*range(5), 0], [0] * 5 + [1], [0, 5, 6])
    host.tables, host.write_from = [[[2, 0], [1]]], [0, 0]
    q, kv = there(plain, floats(rng, 6, 8)), there(plain, floats(rng, 6, 4))
    batch = plain.upload(host)
    q = plain.rope_and_store(q, kv, kv, cache, batch, None, spec)
    out = plain.attention(q, cache, batch, spec)
    assert out.isfinite().all()


def test_a_bfloat16_cache_rounds_keys_and_values(plain: CudaOps, rng: np.random.Generator) -> None:
    spec = AttentionSpec(layer=0, heads=2, kv_heads=2, head_dim=8, scale=0.4)
    twin = ReferenceOps()
    host = HostBatch(BLOCK, [0] * 9, list(range(9)), [0] * 9, [0, 9], [[[2, 0, 1]]], [0])
    q, k, v = (floats(rng, 9, 16) for _ in range(3))
    cache = plain.allocate_cache(CacheLayout(BLOCK, (1,), 2, 8, "bfloat16"), [3])
    batch = plain.upload(host)
    sent = [there(plain, a) for a in (q, k, v)]
    got = plain.attention(plain.rope_and_store(*sent, cache, batch, None, spec), cache, batch, spec)
    rounded = [torch.from_numpy(a).bfloat16().float().numpy() for a in (k, v)]
    exact = twin.allocate_cache(CacheLayout(BLOCK, (1,), 2, 8), [3])
    held = twin.upload(host)
    twin.rope_and_store(q, *rounded, exact, held, None, spec)
    assert near(got, twin.attention(q, exact, held, spec))
    assert cache.keys[0].dtype == torch.bfloat16


def test_copies_read_all_sources_before_any_target_is_written(plain: CudaOps) -> None:
    cache = plain.allocate_cache(CacheLayout(BLOCK, (2, 1), 2, 4), [6, 3])
    for pool in (*cache.keys, *cache.values):
        pool.copy_(torch.arange(pool.numel(), device=plain.device).view(pool.shape))
    before = [pool.clone() for pool in (*cache.keys, *cache.values)]
    plain.copy_blocks(cache, [(0, 1, 2), (0, 2, 1), (0, 2, 5), (1, 0, 2)])
    now = [*cache.keys, *cache.values]
    for i in (0, 2):
        assert torch.equal(now[i], before[i][:, [0, 2, 1, 3, 4, 2]])
    for i in (1, 3):
        assert torch.equal(now[i], before[i][:, [0, 1, 0]])


def test_embeddings_and_logit_rows(plain: CudaOps, rng: np.random.Generator) -> None:
    table = floats(rng, 20, 6)
    host = HostBatch(BLOCK, [7, 0, 19, 7], [0, 1, 2, 3], [0] * 4, [0, 4], [[[0]]], [0], [3, 1])
    batch = plain.upload(host)
    x = plain.embed(batch, plain.pack([raw(table)]))
    assert near(x, table[[7, 0, 19, 7]], 0)
    assert near(plain.logit_rows(x, batch), table[[7, 0]], 0)


def test_a_batch_without_rows_passes_through(ops: CudaOps, rng: np.random.Generator) -> None:
    spec = AttentionSpec(layer=0, heads=2, kv_heads=1, head_dim=4, scale=1.0)
    cache = ops.allocate_cache(CacheLayout(BLOCK, (1,), 1, 4), [3])
    batch = ops.upload(HostBatch(BLOCK, tables=[[]]))
    x = ops.embed(batch, ops.pack([raw(floats(rng, 9, 8))]))
    x, _ = ops.norm(x, ops.vector(raw(floats(rng, 8))), NormSpec("rms", 1e-5), x)
    rope = RopeSpec((1.0, 0.5))
    q = ops.rope_and_store(x, x[:, :4], x[:, 4:], cache, batch, rope, spec)
    assert ops.logit_rows(ops.attention(q, cache, batch, spec), batch).shape == (0, 8)


def test_sampling_and_scoring_are_the_references(plain: CudaOps, rng: np.random.Generator) -> None:
    logits = 3 * floats(rng, 4, 300)
    logits[3, 5] = np.nan
    rows = [
        SampleRow(seed=1, choice=0, position=9, temperature=0.0, top=2),
        SampleRow(seed=2, choice=1, position=4, temperature=0.8, top_p=0.9, top=0),
        SampleRow(seed=3, choice=0, position=7, top_k=20, output_counts={4: 2}, banned=[1, 2]),
        SampleRow(seed=4, choice=0, position=1),
    ]
    padded = there(plain, np.concatenate([logits, logits[:, :7]], axis=1))[:, :300]
    assert plain.sample(padded, rows) == ReferenceOps().sample(logits, rows)
    assert plain.score(padded, [4, 9, 299, 3], 3) == ReferenceOps().score(logits, [4, 9, 299, 3], 3)


def test_want_of_memory_is_told_as_such(plain: CudaOps, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = CacheLayout(16, (64,), 64, 1024)
    with pytest.raises(MemoryError):
        plain.allocate_cache(layout, [1 << 24])

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    monkeypatch.setattr(torch, "add", lambda *_, **__: full())
    x = torch.zeros((1, 2), device=plain.device)
    with pytest.raises(MemoryError, match=r"3\.00 GiB"):
        plain.add(x, x)
    with pytest.raises(RuntimeError, match="shape") as caught:
        plain.linear(x, plain.pack([raw(np.zeros((2, 3), np.float32))]))
    assert not isinstance(caught.value, MemoryError)


def test_what_cannot_be_done_is_refused_with_the_numbers(plain: CudaOps) -> None:
    host = HostBatch(BLOCK, [0, 0], [8, 9], [0, 0], [0, 2], [[[0, 1]]], [8])
    with pytest.raises(ValueError, match="position 9, but its block table covers 8"):
        plain.upload(host)
    with pytest.raises(ValueError, match="float32 or bfloat16, not int8"):
        plain.allocate_cache(CacheLayout(BLOCK, (1,), 1, 4, "int8"), [2])
    with pytest.raises(ValueError, match="2 pools for 1"):
        plain.allocate_cache(CacheLayout(BLOCK, (1,), 1, 4), [2, 2])


def test_the_identity_tells_what_the_bits_depend_on() -> None:
    made = [CudaOps(triton=False), CudaOps(dtype="bfloat16", triton=False)]
    made += [CudaOps(triton=True)] if TRITON else []
    assert len({one.identity for one in made}) == len(made)
    assert all(torch.__version__ in one.identity for one in made)


@pytest.mark.skipif(CUDA, reason="a GPU runs Triton")
def test_triton_without_a_gpu_or_its_interpreter_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"TRITON_INTERPRET=1.*cpu"):
        CudaOps(triton=True)
    assert "norm:torch" in CudaOps().identity


@pytest.mark.parametrize("pattern", expert_cases.PATTERNS)
def test_routed_experts(plain: CudaOps, pattern: str) -> None:
    twin = ReferenceOps()
    for seed, spec in enumerate(
        (
            RoutingSpec(8, 2),
            RoutingSpec(6, 6, normalize=False, scale=2.5, shared=True),
            RoutingSpec(5, 3, normalize=False),
            RoutingSpec(1, 1, shared=True),
        )
    ):
        for rows in (0, 1, 33):
            case = expert_cases.make(seed, spec, rows=rows, pattern=pattern)
            found = []
            for ops in (twin, plain):
                pairs = [
                    (
                        ops.pack([expert_cases.raw(up) for up in ups]),
                        ops.pack([expert_cases.raw(down)]),
                    )
                    for *ups, down in case.matrices
                ]
                found.append(ops.bundle(pairs, case.kind, spec))
            expected = twin.experts(case.x, case.scores, found[0])
            got = plain.experts(there(plain, case.x), there(plain, case.scores), found[1])
            assert near(got, expected)


def test_a_router_stays_float32(rng: np.random.Generator) -> None:
    ops = CudaOps(dtype="bfloat16", triton=False)
    assert ops.pack([raw(floats(rng, 4, 8))], exact=True).matrix.dtype == torch.float32
    assert ops.notes == []
