"""A recorded step gives what its calls give, to the bit, whatever they are and however often."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops import AttentionSpec, CacheLayout, HostBatch, NormSpec, RawWeight, RopeSpec, native
from support import native_isas

NATIVE: Any = native.load_native()[0]
pytestmark = pytest.mark.skipif(NATIVE is None, reason=native.native_reason() or "no kernels")

WIDTH, HEADS, KV_HEADS, HEAD, WORDS, BLOCK, LAYERS = 64, 4, 2, 16, 50, 16, 12
ROPES = [
    None,
    RopeSpec(tuple(100.0 ** (-i / 8) for i in range(8))),
    RopeSpec((1.0, 0.5), interleaved=True),
]
Forward = Callable[[Any, Any, Any], Any]


def raw(rng: np.random.Generator, *shape: int) -> RawWeight:
    data = rng.normal(0, 0.2, shape).astype(np.float32)
    return RawWeight("w", shape, "f32", data, lambda: data)


def q8(rng: np.random.Generator, outputs: int, inputs: int) -> RawWeight:
    blocks = outputs * inputs // 32
    scales = rng.uniform(0.001, 0.003, blocks).astype(np.float16).view(np.uint8).reshape(-1, 2)
    codes = rng.integers(-100, 100, (blocks, 32)).astype(np.int8).view(np.uint8)
    rows = np.concatenate([scales, codes], axis=1).reshape(outputs, -1)
    return RawWeight("w", (outputs, inputs), "gguf:Q8_0", rows, lambda: None)


class Model:
    """Weights of each family, and steps put together from a list of choices."""

    def __init__(self, seed: int = 0, threads: int = 2) -> None:
        from octavo.ops.cpu import CpuOps

        rng = np.random.default_rng(seed)
        self.ops: Any = CpuOps(threads=threads)
        pack = self.ops.pack
        self.table = pack([raw(rng, WORDS, WIDTH)])
        self.square = pack([raw(rng, WIDTH, WIDTH)], [raw(rng, WIDTH)])
        self.coded = pack([q8(rng, WIDTH, WIDTH)])
        self.mixed = pack([raw(rng, 40, WIDTH), q8(rng, 24, WIDTH)], [raw(rng, 40), raw(rng, 24)])
        self.gated = pack([raw(rng, WIDTH, WIDTH), raw(rng, WIDTH, WIDTH)])
        self.qkv = pack([raw(rng, n * HEAD, WIDTH) for n in (HEADS, KV_HEADS, KV_HEADS)])
        self.vector = self.ops.vector(raw(rng, WIDTH))

    def forward(self, choices: list[tuple[int, int, int]]) -> Forward:
        return partial(self._forward, choices)

    def _forward(
        self, choices: list[tuple[int, int, int]], ops: Any, batch: Any, cache: Any
    ) -> Any:
        values, layer = [ops.embed(batch, self.table)], 0
        for kind, i, j in choices:
            x, y = values[i % len(values)], values[j % len(values)]
            match kind:
                case 0:
                    values += ops.norm(x, self.vector, NormSpec("rms", 1e-5))
                case 1:
                    values += ops.norm(x, self.vector, NormSpec("layer", 1e-5), y, self.vector)
                case 2:
                    values.append(ops.linear(x, (self.square, self.coded, self.mixed)[j % 3]))
                case 3:
                    values.append(ops.act(ops.linear(x, self.gated), "silu_gated"))
                case 4:
                    values.append(ops.act(x, "gelu"))
                case 5:
                    values.append(ops.add(x, y, 0.5 if i % 2 else 1.0))
                case 6:
                    values.append(ops.scale(x, 0.7))
                case 8:
                    values.append(ops.bound(x, 0.7, smooth=bool(j % 2)))
                case 9:
                    table, offset = (self.table, 2) if j % 2 else (self.coded, 0)
                    values.append(ops.embed_positions(batch, table, offset))
                case 10:
                    head = self.vector[:HEAD]
                    values.append(ops.norm(x, head, NormSpec("rms", 1e-5), None, head)[0])
                case _:
                    values.append(self._attend(ops, x, batch, cache, layer, j))
                    layer += 1
        x, y = (ops.logit_rows(value, batch) for value in (values[-1], values[len(values) // 2]))
        return ops.norm(x, self.vector, NormSpec("rms", 1e-5), y)[0]

    def _attend(self, ops: Any, x: Any, batch: Any, cache: Any, layer: int, which: int) -> Any:
        slopes = (0.5, 0.25, 0.125, 0.0625) if which % 2 else ()
        spec = AttentionSpec(
            layer, HEADS, KV_HEADS, HEAD, 0.25, window=which % 40, alibi_slopes=slopes
        )
        qkv = ops.linear(x, self.qkv)
        q, k, v = qkv[:, :64], qkv[:, 64:96], qkv[:, 96:]
        q = ops.rope_and_store(q, k, v, cache, batch, ROPES[which % 3], spec)
        return ops.attention(q, cache, batch, spec)

    def cache(self) -> Any:
        return self.ops.allocate_cache(CacheLayout(BLOCK, (LAYERS,), KV_HEADS, HEAD), [8])


def host(counts: list[int], wanted: list[int], start: int = 0) -> HostBatch:
    """Rows of so many tokens from position `start` on, each with two blocks of its own."""
    out = HostBatch(BLOCK, tables=[[]])
    for row, count in enumerate(counts):
        out.ids += [(7 * row + 3 * i + start) % WORDS for i in range(count)]
        out.positions += range(start, start + count)
        out.row_of += [row] * count
        out.row_starts.append(len(out.ids))
        out.tables[0].append([2 * row + 1, 2 * row])
        out.write_from.append(start)
    out.logit_tokens = [token % len(out.ids) for token in wanted]
    return out


MODEL = Model() if NATIVE is not None else None
STEPS = st.lists(
    st.tuples(st.integers(0, 10), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(
    STEPS,
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.integers(0, 50), max_size=70),
)
def test_any_recorded_step_equals_its_calls(
    choices: list[tuple[int, int, int]], counts: list[int], wanted: list[int]
) -> None:
    assert MODEL is not None
    forward = MODEL.forward(choices)
    recorded, ops = MODEL.ops.recorded(forward), MODEL.ops
    theirs, ours = MODEL.cache(), MODEL.cache()
    for start, some in ((0, counts), (12, [1] * len(counts)), (13, counts)):
        batch = ops.upload(host(some, wanted, start))
        np.testing.assert_array_equal(
            recorded(batch, ours), forward(ops, batch, theirs), strict=True
        )


def attend_once() -> list[tuple[int, int, int]]:
    return [(7, 0, 1), (3, 1, 0)]


def recorded_step() -> tuple[Any, Any, Any]:
    assert MODEL is not None
    return MODEL.ops.recorded(MODEL.forward(attend_once())), MODEL.ops, MODEL.cache()


def test_positions_beyond_a_table_raise() -> None:
    assert MODEL is not None
    step = MODEL.ops.recorded(MODEL.forward([(9, 0, 1)]))
    batch, cache = MODEL.ops.upload(host([1], [0], 25)), MODEL.cache()
    assert step(batch, cache).shape == (1, WIDTH)
    far = HostBatch(BLOCK, [1], [48], [0], [0, 1], [[[0, 1, 2, 3]]], [0], [0])
    with pytest.raises(ValueError, match="position 48 in a table of 48"):
        step(MODEL.ops.upload(far), cache)


def test_a_batch_of_no_tokens_gives_no_rows() -> None:
    step, ops, cache = recorded_step()
    assert step(ops.upload(HostBatch(BLOCK, tables=[[]])), cache).shape == (0, WIDTH)


def test_memory_between_ops_is_shared_and_told() -> None:
    assert MODEL is not None
    chain = MODEL.ops.recorded(MODEL.forward([(4, i, 0) for i in range(40)]))
    assert 0 < chain.workspace_bytes(1) <= 8 * WIDTH * 4
    assert chain.workspace_bytes(300) == 300 * chain.workspace_bytes(1)


def test_what_does_not_fit_raises_and_harms_nothing() -> None:
    step, ops, cache = recorded_step()
    good = host([3, 2], [0, 4])
    before = step(ops.upload(good), cache)
    cases: list[tuple[str, HostBatch, Any]] = []
    unknown = host([3], [0])
    unknown.ids[1] = WORDS
    cases.append((f"id {WORDS} is outside", unknown, cache))
    negative = host([3], [0])
    negative.ids[2] = -1
    cases.append(("id -1 is outside", negative, cache))
    outside = host([1], [0])
    outside.tables = [[[8]]]
    cases.append(("block 8 is outside", outside, cache))
    layout = CacheLayout(BLOCK, (LAYERS,), KV_HEADS, 2 * HEAD)
    cases.append(("other heads", good, ops.allocate_cache(layout, [8])))
    layout = CacheLayout(2 * BLOCK, (LAYERS,), KV_HEADS, HEAD)
    cases.append(("blocks of 16", good, ops.allocate_cache(layout, [8])))
    layout = CacheLayout(BLOCK, (0,), KV_HEADS, HEAD)
    cases.append(("layer 0", good, ops.allocate_cache(layout, [8])))
    for message, batch, held in cases:
        with pytest.raises(ValueError, match=message):
            step(ops.upload(batch), held)
    np.testing.assert_array_equal(step(ops.upload(good), cache), before)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda ops, b, c: ops.embed(b, MODEL.table), "whose logits are wanted"),  # type: ignore[union-attr]
        (lambda ops, b, c: ops.embed(b, MODEL.table)[:5, :], "all rows"),  # type: ignore[union-attr]
        (lambda ops, b, c: ops.act(ops.embed(b, MODEL.table), "tanh"), "unknown activation"),  # type: ignore[union-attr]
        (
            lambda ops, b, c: ops.linear(ops.embed(b, MODEL.table)[:, :8], MODEL.square),  # type: ignore[union-attr]
            "8 values for 64",
        ),
    ],
)
def test_what_cannot_be_recorded_says_so(forward: Forward, message: str) -> None:
    assert MODEL is not None
    with pytest.raises(ValueError, match=message):
        MODEL.ops.recorded(forward)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)
