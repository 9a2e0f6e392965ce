"""Counting by hand, the clock around the ops, and whole steps of small models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.bench.ceilings import Ceilings
from octavo.bench.counting import Counter, packed_bytes
from octavo.bench.roofline import HOST, Roofline, blocks_needed
from octavo.bench.timed_ops import TimedOps
from octavo.core.params import SamplingParams
from octavo.core.plan import Admitted, Row, StepPlan, Want
from octavo.model.decoder import Decoder
from octavo.model.executor import ModelExecutor
from octavo.ops import AttentionSpec, CacheLayout, HostBatch, RawWeight, RoutingSpec
from octavo.ops.reference import ReferenceOps
from support.tiny_models import TinyModel, tiny_random

CEILINGS = Ceilings(
    "x", 1, 1e10, {"float32": 1e11, "bfloat16": 2e11, "int8": 4e11}, dict.fromkeys("x", "y")
)


def raw(name: str, outputs: int, inputs: int) -> RawWeight:
    array = np.zeros((outputs, inputs), np.float32)
    return RawWeight(name, array.shape, "f32", array, lambda: array)


@pytest.mark.parametrize(
    ("each", "kind"), [(4.0, "float32"), (2.0, "bfloat16"), (1.06, "int8"), (0.625, "int8")]
)
def test_a_product_is_counted_from_its_packed_weight(each: float, kind: str) -> None:
    counter = Counter()
    packed = SimpleNamespace(bytes=int(each * 24 * 10))
    counter.packed([raw("layers.3.q", 16, 10), raw("layers.3.k", 8, 10)], packed)
    cost = counter.cost("linear", np.zeros((5, 10), np.float32), packed)
    assert cost.label == "linear q+k"
    assert cost.bytes == packed.bytes and cost.operations == 2 * 5 * 24 * 10
    assert cost.kind == kind


def test_a_tied_head_and_a_lookup() -> None:
    counter = Counter()
    packed = SimpleNamespace(nbytes=100 * 8 * 2)
    counter.packed([raw("embed", 100, 8)], packed)
    counter.uploaded(HostBatch(4, ids=[1, 2, 3]))
    assert counter.cost("linear", np.zeros((2, 8)), packed).label == "linear head"
    assert counter.cost("embed", None, packed).bytes == 3 * 8 * 2
    assert packed_bytes(ReferenceOps().pack([raw("x", 4, 6)])) == 4 * 6 * 4
    assert packed_bytes(SimpleNamespace(parts=[packed, SimpleNamespace(bytes=5)])) == 1605


def test_experts_are_counted_as_often_as_they_are_taken() -> None:
    """Two of four, and a shared one that is three times as wide."""
    timed: Any = TimedOps(ReferenceOps(), SteppingClock())
    pairs = [
        (timed.pack([raw("gate", n, 8), raw("up", n, 8)]), timed.pack([raw("down", 8, n)]))
        for n in (6, 6, 6, 6, 18)
    ]
    experts = timed.bundle(pairs, "silu_gated", RoutingSpec(4, 2, shared=True))
    one, shared = 3 * 6 * 8, 3 * 18 * 8
    for tokens, taken in ((0, 0.0), (1, 2.0), (2, 3.0), (200, 4.0)):
        x, scores = np.zeros((tokens, 8), np.float32), np.zeros((tokens, 5), np.float32)
        timed.experts(x, scores, experts)
        cost = timed.take()[0][-1].cost
        assert cost.operations == tokens * 2 * (2 * one + shared)
        assert cost.bytes == pytest.approx(4 * (taken * one + min(tokens, 1) * shared))
        assert (cost.label, cost.kind) == ("experts", "float32")


@pytest.mark.parametrize("window", [0, 1, 3, 8, 100])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_is_counted_pair_by_pair(window: int, dtype: str) -> None:
    spec = AttentionSpec(0, heads=6, kv_heads=2, head_dim=8, scale=1.0, window=window)
    rows = [(0, 5), (7, 1), (2, 6)]
    batch = HostBatch(4)
    for start, count in rows:
        batch.positions += range(start, start + count)
        batch.row_starts.append(len(batch.positions))
    counter = Counter()
    counter.allocated(CacheLayout(4, (1,), 2, 8, dtype))
    counter.uploaded(batch)
    seen = [
        [range(max(0, p + 1 - window) if window else 0, p + 1) for p in range(s, s + n)]
        for s, n in rows
    ]
    pairs = sum(len(one) for row in seen for one in row)
    keys = sum(len(set().union(*row)) for row in seen)
    cost = counter.cost("attention", None, None, None, spec)
    assert cost.operations == 4 * 6 * 8 * pairs
    assert cost.bytes == 2 * {"float32": 4, "bfloat16": 2}[dtype] * 2 * 8 * keys
    assert cost.kind == dtype


def test_ops_on_activations_are_counted_by_what_they_touch() -> None:
    counter, x = Counter(), np.zeros((3, 8), np.float32)
    assert counter.cost("norm", x, None, None).bytes == 4 * 2 * 24
    assert counter.cost("norm", x, None, None, x).bytes == 4 * 4 * 24
    assert counter.cost("norm", x, None, None, residual=x).bytes == 4 * 4 * 24
    assert counter.cost("act", x, "silu_gated").bytes == 4 * 1.5 * 24
    assert counter.cost("act", x, "silu").bytes == 4 * 2 * 24
    assert counter.cost("add", x, x).bytes == 4 * 3 * 24
    assert counter.cost("scale", x, 2.0).bytes == 4 * 2 * 24
    assert counter.cost("sample", x, []).bytes == counter.cost("score", x, [], 1).bytes == 96
    kv = np.zeros((3, 4), np.float32)
    assert counter.cost("rope_and_store", x, kv, kv).bytes == 4 * (2 * 24 + 4 * 12)
    unknown = counter.cost("something_new", x)
    assert (unknown.label, unknown.bytes, unknown.operations) == ("something_new", 0, 0)


class SteppingClock:
    """Each look at it is one second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_clock_goes_around_any_op_and_changes_nothing() -> None:
    plain = ReferenceOps()
    timed: Any = TimedOps(plain, SteppingClock())
    assert timed.name == "reference" and timed.identity == plain.identity
    weight = timed.pack([raw("layers.0.o", 4, 6)])
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert np.array_equal(timed.linear(x, weight), plain.linear(x, weight))
    assert np.array_equal(timed.scale(x, 2.0), x * 2)
    assert np.array_equal(timed.scale(x, 3.0), x * 3)
    calls, overhead = timed.take()
    assert [call.cost.label for call in calls] == ["linear o", "scale", "scale"]
    assert [call.seconds for call in calls] == [1.0, 1.0, 1.0]
    assert overhead == 3.0
    assert timed.take() == ([], 0.0)
    with pytest.raises(AttributeError):
        timed.no_such_op(x)
    with pytest.raises(ValueError, match="matmul"):
        timed.linear(x[:, :5], weight)


def driver(model: TinyModel, blocks: int) -> tuple[Roofline, TimedOps, ModelExecutor]:
    ops = TimedOps(ReferenceOps())
    decoder = Decoder(model.spec, model.source(), ops)  # type: ignore[arg-type]
    executor = ModelExecutor(decoder, ops, num_blocks=blocks, block_size=4)  # type: ignore[arg-type]
    roofline = Roofline(
        executor, ops, vocab=model.spec.vocab_used, block_size=4, groups=executor.groups
    )
    return roofline, ops, executor


LABELS = {
    *("linear q+k+v", "linear o", "linear gate+up", "linear down", "linear head"),
    *("attention", "norm", "act", "embed", "sample", HOST),
}


@pytest.mark.parametrize(("batch", "context"), [(1, 520), (3, 200)])
def test_steps_of_a_small_model(batch: int, context: int) -> None:
    """More prompt tokens than a step takes, so that one prompt is cut."""
    model = tiny_random("llama", tied=True)
    roofline, _, executor = driver(model, blocks_needed(batch, context, 3, 4))
    for _ in range(2):  # the same pool serves the next measurement
        prefill, decode = roofline.measure(batch, context, 3, lambda: CEILINGS)
    assert (prefill.name, prefill.tokens) == ("prefill", batch * context)
    assert (decode.name, decode.tokens) == ("decode", batch)
    assert len(executor._sequences) == batch
    for phase in (prefill, decode):
        ops = {op.label: op for op in phase.ops}
        assert set(ops) >= LABELS
        assert sum(op.share for op in phase.ops) == pytest.approx(1.0)
        assert phase.fraction is not None and phase.fraction > 0
        assert all(op.fraction is None or op.fraction > 0 for op in phase.ops)
        assert ops["linear head"].operations > 0 and ops["upload"].fraction is None
    layers, hidden = len(model.spec.layers), model.spec.hidden
    ops = {op.label: op for op in decode.ops}
    assert ops["linear o"].calls == layers and ops["norm"].calls == 2 * layers + 1
    assert ops["linear o"].operations == 2 * batch * layers * hidden * hidden
    # Every prompt token is multiplied once, whatever the steps it came in.
    whole = {op.label: op for op in prefill.ops}["linear o"]
    assert whole.operations == 2 * batch * context * layers * hidden * hidden


def test_without_ceilings_there_are_shares_and_no_fractions() -> None:
    roofline, _, _ = driver(tiny_random("llama"), blocks_needed(1, 8, 2, 4))
    for phase in roofline.measure(1, 8, 2, None):
        assert phase.fraction is None and phase.seconds > 0
        assert all(op.fraction is None and op.limit is None for op in phase.ops)


def test_a_step_that_fails_is_told() -> None:
    roofline, _, _ = driver(tiny_random("llama"), blocks=2)
    with pytest.raises(RuntimeError, match=r"a step fails: .*outside the pool"):
        roofline.measure(1, 64, 2, None)


def test_the_tokens_are_those_of_the_plain_ops() -> None:
    model = tiny_random("qwen2", peaked=True)
    prompt = list(range(5, 45))
    row = Row(0, 0, prompt, (list(range(10)),), 0, len(prompt) - 1, Want.SAMPLE)
    params = SamplingParams(temperature=0.0, max_tokens=4)
    plan = StepPlan(0, rows=[row], admitted=[Admitted(0, params, 0, 0, len(prompt), prompt)])
    _, _, executor = driver(model, 10)
    plain = ReferenceOps()
    other = ModelExecutor(
        Decoder(model.spec, model.source(), plain), plain, num_blocks=10, block_size=4
    )
    assert executor.submit(plan).rows[0].tokens == other.submit(plan).rows[0].tokens
