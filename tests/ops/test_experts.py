"""Routed experts on the reference and the compiled kernels: values, ties, and bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops import HostBatch, RawWeight, RoutingSpec
from octavo.ops.native import native_available, native_reason
from octavo.ops.reference import ReferenceOps
from octavo.ops.select import select_ops
from support import expert_cases, native_isas
from support.expert_cases import Case, raw

needs_kernels = pytest.mark.skipif(not native_available(), reason=native_reason() or "no kernels")
BACKENDS = [
    pytest.param(lambda: ReferenceOps(), id="reference"),
    pytest.param(lambda: ReferenceOps(row_at_a_time=True), id="rows"),
    pytest.param(
        lambda: select_ops("cpu", dtype="float32", threads=2), id="cpu", marks=needs_kernels
    ),
]


def bundle(ops: Any, case: Case, form: Callable[[np.ndarray], RawWeight] = raw) -> Any:
    packed = [
        (ops.pack([form(up) for up in ups]), ops.pack([form(down)])) for *ups, down in case.matrices
    ]
    return ops.bundle(packed, case.kind, case.spec)


def q8(array: np.ndarray) -> RawWeight:
    """As GGUF's Q8_0: the width must be a multiple of 32."""
    blocks = array.reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    codes = np.rint(blocks / scales.astype(np.float32)).astype(np.int8)
    rows = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=1)
    return RawWeight("w", array.shape, "gguf:Q8_0", rows.reshape(array.shape[0], -1), lambda: array)


specs = st.integers(1, 17).flatmap(
    lambda count: st.builds(
        RoutingSpec,
        count=st.just(count),
        top_k=st.integers(1, count),
        normalize=st.booleans(),
        scale=st.sampled_from([1.0, 2.5]),
        shared=st.booleans(),
    )
)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=80, deadline=None)
@given(
    spec=specs,
    kind=st.sampled_from(["silu_gated", "gelu"]),
    rows=st.integers(0, 70),
    hidden=st.integers(1, 70),
    width=st.integers(1, 70),
    pattern=st.sampled_from(expert_cases.PATTERNS),
    seed=st.integers(0, 1000),
)
def test_the_sum_is_that_of_each_tokens_experts(
    backend: Callable[[], Any],
    spec: RoutingSpec,
    kind: str,
    rows: int,
    hidden: int,
    width: int,
    pattern: str,
    seed: int,
) -> None:
    """Ragged: experts without a row, with one, with all; ties go to the lower number."""
    case = expert_cases.make(
        seed, spec, kind=kind, hidden=hidden, width=width, rows=rows, pattern=pattern
    )
    ops = backend()
    found = ops.experts(case.x, case.scores, bundle(ops, case))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expert_cases.expected(case), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_scores_go_to_the_lower_number(backend: Callable[[], Any]) -> None:
    case = expert_cases.make(0, RoutingSpec(8, 3), rows=1)
    ops = backend()
    experts = bundle(ops, case)
    for scores, taken in (
        ([1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 2]),
        ([0, 2, 1, 1, 2, 1, 0, 1], [1, 2, 4]),
        ([0, 0, 0, 0, 0, 0, 0, 3], [0, 1, 7]),
        ([-0.0, 0.0, -0.0, 0.0, -1, -1, -1, -1], [0, 1, 2]),
    ):
        given_ = np.array([scores], np.float32)
        only = np.full((1, 8), -80, np.float32)
        only[:, taken] = given_[:, taken]
        found = ops.experts(case.x, given_, experts)
        np.testing.assert_allclose(found, ops.experts(case.x, only, experts), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_that_is_not_finite_stays_so_and_harms_no_other(backend: Callable[[], Any]) -> None:
    case = expert_cases.make(1, RoutingSpec(6, 2), rows=7)
    ops = backend()
    experts = bundle(ops, case)
    good = ops.experts(case.x, case.scores, experts)
    for place, value in itertools.product((0, 5), (np.nan, np.inf)):
        scores = case.scores.copy()
        scores[3, place] = value
        found = ops.experts(case.x, scores, experts)
        assert np.isnan(found[3]).all()
        np.testing.assert_allclose(
            np.delete(found, 3, 0), np.delete(good, 3, 0), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("spec", "change"),
    [
        (RoutingSpec(4, 5), lambda case: case),
        (RoutingSpec(4, 0), lambda case: case),
        (RoutingSpec(4, 2), lambda case: replace(case, matrices=case.matrices[:3])),
        (RoutingSpec(4, 2), lambda case: replace(case, matrices=case.matrices + case.matrices[:1])),
        (
            RoutingSpec(4, 2),
            lambda case: replace(case, matrices=[[m[0], m[1], m[2][:-1]] for m in case.matrices]),
        ),
        (RoutingSpec(4, 2), lambda case: replace(case, kind="silu")),
    ],
)
def test_experts_that_do_not_fit_are_refused(
    backend: Callable[[], Any], spec: RoutingSpec, change: Callable[[Case], Case]
) -> None:
    case = change(expert_cases.make(0, spec))
    with pytest.raises(ValueError, match="expert"):
        bundle(backend(), case)


FORMS = {
    "f32": ("float32", lambda expert: raw),
    "bf16": ("bfloat16", lambda expert: raw),
    "codes": ("auto", lambda expert: q8),
    "mixed": ("auto", lambda expert: q8 if expert % 2 else raw),
}


def packed(ops: Any, case: Case, name: str) -> Any:
    """ "mixed": some experts are codes, and some have a gate of codes beside an up of floats."""
    form = FORMS[name][1]
    pairs = []
    for number, (gate, up, down) in enumerate(case.matrices):
        other = raw if name == "mixed" and number % 3 == 0 else form(number)
        pairs.append((ops.pack([form(number)(gate), other(up)]), ops.pack([form(number)(down)])))
    return ops.bundle(pairs, case.kind, case.spec)


@needs_kernels
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pattern", expert_cases.PATTERNS)
def test_a_rows_bits_do_not_depend_on_the_others(form: str, pattern: str) -> None:
    """Alone, in any order, in any company, on any number of threads."""
    spec = RoutingSpec(6, 2, shared=True)
    case = expert_cases.make(
        3, spec, hidden=96, width=64, shared_width=160, rows=83, pattern=pattern
    )
    ops = select_ops("cpu", dtype=FORMS[form][0], threads=2)
    experts = packed(ops, case, form)
    whole = ops.experts(case.x, case.scores, experts)
    close = expert_cases.expected(case)
    assert np.abs(whole - close).max() < 0.02 * np.abs(close).max()
    rng = np.random.default_rng(0)
    for _ in range(12):
        rows = rng.permutation(83)[: int(rng.integers(1, 84))]
        some = ops.experts(case.x[rows].copy(), case.scores[rows].copy(), experts)
        assert some.tobytes() == whole[rows].tobytes()
    other = select_ops("cpu", dtype=FORMS[form][0], threads=1)
    alone = other.experts(case.x[7:8], case.scores[7:8], packed(other, case, form))
    assert alone.tobytes() == whole[7:8].tobytes()


def test_row_at_a_time_has_the_same_bits_in_any_batch() -> None:
    case = expert_cases.make(3, RoutingSpec(6, 2, shared=True), rows=30)
    ops = ReferenceOps(row_at_a_time=True)
    experts = bundle(ops, case)
    whole = ops.experts(case.x, case.scores, experts)
    for rows in ([4], [29, 0, 13], list(range(17))):
        some = ops.experts(case.x[rows], case.scores[rows], experts)
        assert some.tobytes() == whole[rows].tobytes()


@needs_kernels
@pytest.mark.parametrize("form", FORMS)
def test_a_recorded_step_equals_its_calls(form: str) -> None:
    """For batches that grow and shrink, whatever experts their rows choose."""
    hidden, words = 64, 50
    case = expert_cases.make(
        5, RoutingSpec(5, 2, shared=True), hidden=hidden, width=32, shared_width=96
    )
    ops: Any = select_ops("cpu", dtype=FORMS[form][0], threads=2)
    experts = packed(ops, case, form)
    rng = np.random.default_rng(1)
    table = ops.pack([raw(rng.normal(size=(words, hidden)).astype(np.float32))])
    router = ops.pack([raw(rng.normal(size=(6, hidden)).astype(np.float32))], exact=True)
    assert router.format == "f32"

    def forward(ops: Any, batch: Any, cache: Any) -> Any:
        x = ops.embed(batch, table)
        y = ops.experts(x, ops.linear(x, router), experts)
        again = ops.experts(ops.add(x, y), ops.linear(y, router), experts)
        rows = ops.logit_rows(again, batch)
        return ops.add(rows, ops.experts(rows, ops.linear(rows, router), experts))

    recorded = ops.recorded(forward)
    for tokens in (3, 1, 200, 17):
        batch = ops.upload(_batch(rng, tokens, words))
        cache = ops.allocate_cache(_layout(), [16])
        np.testing.assert_array_equal(
            recorded(batch, cache), forward(ops, batch, cache), strict=True
        )


def _layout() -> Any:
    from octavo.ops import CacheLayout

    return CacheLayout(16, (1,), 1, 8)


def _batch(rng: np.random.Generator, tokens: int, words: int) -> HostBatch:
    blocks = list(range(-(-tokens // 16)))
    return HostBatch(
        16,
        ids=rng.integers(0, words, tokens).tolist(),
        positions=list(range(tokens)),
        row_of=[0] * tokens,
        row_starts=[0, tokens],
        tables=[[blocks]],
        write_from=[0],
        logit_tokens=rng.integers(0, tokens, 9).tolist(),
    )


@needs_kernels
def test_experts_of_other_shapes_cannot_be_recorded() -> None:
    case = expert_cases.make(5, RoutingSpec(5, 2))
    ops: Any = select_ops("cpu", dtype="float32")
    experts = bundle(ops, case)
    with pytest.raises(ValueError, match="scores for 5 experts"):
        ops.experts(case.x, case.scores[:, :4], experts)
    table = ops.pack([raw(np.zeros((9, 41), np.float32))])

    def forward(ops: Any, batch: Any, cache: Any) -> Any:
        x = ops.embed(batch, table)
        return ops.experts(x, x, experts)

    with pytest.raises(ValueError, match="rows of 41 values"):
        ops.recorded(forward)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)
