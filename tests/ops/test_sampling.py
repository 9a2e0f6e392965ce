"""Sampling and scoring against independent references, on every backend; the edge cases that users
meet."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops import NONFINITE_LOGITS, Ops, SampledRow, SampleRow
from octavo.ops.native import native_available, native_reason
from octavo.ops.noise import exponential
from octavo.ops.reference_sampling import LOGPROB_FLOOR, top_ids
from octavo.ops.select import select_ops
from support import native_isas

VOCAB = 300


@pytest.fixture(
    scope="module",
    params=[
        "reference",
        pytest.param(
            "cpu", marks=pytest.mark.skipif(not native_available(), reason=native_reason())
        ),
    ],
)
def ops(request: pytest.FixtureRequest) -> Ops:
    return select_ops(request.param, threads=2)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa, "-k", "cpu")


def logits_of(seed: int, rows: int = 1, vocab: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


def row(**fields: object) -> SampleRow:
    return SampleRow(**{"seed": 1, "choice": 0, "position": 5, **fields})  # type: ignore[arg-type]


def one(ops: Ops, logits: np.ndarray, asked: SampleRow) -> SampledRow:
    return ops.sample(logits.reshape(1, -1), [asked])[0]


def reference_support(logits: np.ndarray, asked: SampleRow) -> tuple[list[int], np.ndarray]:
    """The ids that may be drawn and their probabilities, by full sorts in float64."""
    x = logits.astype(np.float64)
    for t in set(asked.prompt_counts) | set(asked.output_counts):
        x[t] = x[t] / asked.repetition_penalty if x[t] > 0 else x[t] * asked.repetition_penalty
    for t, count in asked.output_counts.items():
        x[t] -= asked.frequency_penalty * count + asked.presence_penalty
    for t, bias in asked.logit_bias.items():
        x[t] += bias
    for t in asked.banned:
        x[t] = -np.inf
    order = sorted(range(x.size), key=lambda t: (-x[t], t))
    if asked.temperature == 0 or asked.top_k == 1 or asked.top_p == 0:
        return order[:1], np.ones(1)
    order = [t for t in order if x[t] > -np.inf]
    if asked.top_k > 0:
        order = order[: asked.top_k]
    p = np.exp((x[order] - x[order[0]]) / asked.temperature)
    p /= p.sum()
    if asked.top_p < 1:
        before = np.cumsum(p) - p
        keep = max(1, int((before < asked.top_p - 1e-12).sum()))
        order, p = order[:keep], p[:keep]
    keep_p = p >= asked.min_p * p[0]
    order, p = [t for t, k in zip(order, keep_p, strict=True) if k], p[keep_p]
    return order, p / p.sum()


counts = st.dictionaries(st.integers(0, VOCAB - 1), st.integers(1, 5), max_size=12)
rows_strategy = st.builds(
    SampleRow,
    seed=st.integers(0, 2**63 - 1),
    choice=st.integers(0, 8),
    position=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 1e-6, 1e-4, 0.5, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 5, VOCAB, 10**7]),
    top_p=st.sampled_from([0.0, 1e-9, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, -0.5, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5, 0.5]),
    prompt_counts=counts,
    output_counts=counts,
    logit_bias=st.dictionaries(
        st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=5
    ),
    banned=st.lists(st.integers(0, VOCAB - 1), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10_000), asked=rows_strategy)
def test_b10_every_combination_draws_as_the_reference_does(
    ops: Ops, seed: int, asked: SampleRow
) -> None:
    logits = logits_of(seed)[0]
    ids, p = reference_support(logits, asked)
    got = one(ops, logits, asked)
    assert got.error is None
    gumbel = -np.log(exponential(asked.seed, asked.choice, asked.position, np.array(ids)))
    with np.errstate(divide="ignore"):
        assert got.token == ids[int(np.argmax(np.log(p) + gumbel))]


@settings(max_examples=60, deadline=None)
@given(asked=st.lists(rows_strategy, min_size=2, max_size=6), data=st.data())
def test_b09_b11_a_row_is_its_solo_run_whatever_its_neighbours(
    ops: Ops, asked: list[SampleRow], data: st.DataObject
) -> None:
    logits = logits_of(3, len(asked))
    solo = [one(ops, x, r) for x, r in zip(logits, asked, strict=True)]
    order = data.draw(st.permutations(range(len(asked))))
    mixed = ops.sample(logits[order], [asked[i] for i in order])
    assert [mixed[order.index(i)] for i in range(len(asked))] == solo


def test_b09_penalties_follow_their_definitions(ops: Ops) -> None:
    logits = np.array([2.0, -2.0, 1.0, 3.0, 2.9], np.float32)
    greedy = row(temperature=0.0)
    assert one(ops, logits, greedy).token == 3
    # Repetition: over prompt and output, positive divided, negative multiplied.
    assert (
        one(ops, logits, replace(greedy, repetition_penalty=1.3, prompt_counts={3: 1})).token == 4
    )
    assert (
        one(ops, logits, replace(greedy, repetition_penalty=1.3, output_counts={3: 1})).token == 4
    )
    negative = np.array([-1.0, -1.2], np.float32)
    assert (
        one(ops, negative, replace(greedy, repetition_penalty=1.3, prompt_counts={0: 1})).token == 1
    )
    # Presence and frequency: over the output only.
    for field in ("presence_penalty", "frequency_penalty"):
        asked = replace(greedy, **{field: 0.5})
        assert one(ops, logits, replace(asked, prompt_counts={3: 9})).token == 3
        assert one(ops, logits, replace(asked, output_counts={3: 1})).token == 4
    # Frequency grows with the count, presence does not.
    twice = {3: 2, 4: 1}
    assert one(ops, logits, replace(greedy, frequency_penalty=0.2, output_counts=twice)).token == 4
    assert one(ops, logits, replace(greedy, presence_penalty=0.2, output_counts=twice)).token == 3
    # Token 0, the usual padding id, is touched only if present.
    zero = np.array([2.0, 1.9], np.float32)
    assert one(ops, zero, replace(greedy, repetition_penalty=2.0, output_counts={1: 3})).token == 0


def test_b10_small_temperatures_are_greedy_and_not_nan(ops: Ops) -> None:
    logits = logits_of(4)[0]
    for temperature in (1e-320, 1e-6, 1e-4):
        for position in range(50):
            asked = row(temperature=temperature, position=position)
            assert one(ops, logits, asked).token == int(np.argmax(logits))


def test_b10_ties_go_to_the_lowest_id(ops: Ops) -> None:
    logits = np.array([1.0, 5.0, 5.0, 5.0, 0.0], np.float32)
    assert one(ops, logits, row(temperature=0.0)).token == 1
    drawn = {one(ops, logits, row(top_k=2, position=p)).token for p in range(100)}
    assert drawn == {1, 2}
    assert top_ids(logits, 3).tolist() == [1, 2, 3]
    assert top_ids(logits, 99).tolist() == [1, 2, 3, 0, 4]


def test_b10_a_bias_of_minus_100_on_all_but_one_leaves_that_one(ops: Ops) -> None:
    logits = logits_of(5)[0]
    bias = {t: -100.0 for t in range(VOCAB) if t != 17}
    assert all(one(ops, logits, row(logit_bias=bias, position=p)).token == 17 for p in range(20))


def test_draws_follow_the_softmax(ops: Ops) -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    drawn = [one(ops, logits, row(position=p)).token for p in range(8000)]
    shares = np.bincount(drawn, minlength=4) / 8000
    assert np.abs(shares - [0.5, 0.25, 0.15, 0.1]).max() < 0.02


def test_the_grammar_mask_and_bans_exclude(ops: Ops) -> None:
    logits = logits_of(6)[0]
    mask = np.packbits(np.arange(VOCAB) % 7 == 3, bitorder="little").tobytes()
    drawn = {
        one(ops, logits, row(mask=mask, temperature=5.0, position=p)).token for p in range(200)
    }
    assert all(t % 7 == 3 for t in drawn)
    assert len(drawn) > 5
    short = one(
        ops, logits, row(mask=b"\x04", temperature=0.0)
    )  # bits beyond the mask: not allowed
    assert short.token == 2
    nothing = one(ops, logits, row(mask=b"\x00"))
    assert nothing.error is not None
    assert nothing.error != NONFINITE_LOGITS
    best = int(np.argmax(logits))
    assert one(ops, logits, row(temperature=0.0, banned=[best, 10**6])).token != best


@pytest.mark.parametrize("bad", ["nan", "inf", "all -inf"])
def test_b08_a_row_that_is_not_finite_fails_alone(ops: Ops, bad: str) -> None:
    logits = logits_of(7, 3)
    clean = ops.sample(logits.copy(), [row(top=2), row(top=2), row(top=2)])
    if bad == "all -inf":
        logits[1] = -np.inf
    else:
        logits[1, 200] = float(bad)
    for asked in (row(top=2), row(top=2, temperature=0.0)):
        got = ops.sample(logits, [row(top=2), asked, row(top=2)])
        assert got[1].error == NONFINITE_LOGITS
        assert [got[0], got[2]] == [clean[0], clean[2]]
    scored = ops.score(logits, [1, 2, 3], 2)
    assert [s.error for s in scored] == [None, NONFINITE_LOGITS, None]


def test_b08_a_penalty_that_overflows_is_an_error_not_token_zero(ops: Ops) -> None:
    logits = np.full(VOCAB, 1e38, np.float32)
    got = one(ops, logits, row(repetition_penalty=0.001, prompt_counts={4: 1}))
    assert got.error == NONFINITE_LOGITS


def test_a09_logprobs_are_finite_raw_and_ranked(ops: Ops) -> None:
    logits = logits_of(8)[0]
    logits[:100] = -np.inf
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    asked = row(top=20, top_k=1, temperature=1.0, logit_bias={5: 100.0}, repetition_penalty=1.5)
    got = one(ops, logits, asked)
    order = np.argsort(-logits, kind="stable")
    assert [t for t, _ in got.top] == order[:20].tolist()
    assert np.allclose([lp for _, lp in got.top], exact[order[:20]], atol=1e-6)
    assert got.rank == 1 + int((logits > logits[got.token]).sum())
    assert math.isclose(got.logprob, exact[got.token], abs_tol=1e-6)
    everything = one(ops, logits, row(top=VOCAB))
    assert min(lp for _, lp in everything.top) == LOGPROB_FLOOR
    json.dumps([everything.logprob, everything.top], allow_nan=False)
    masked = ops.score(logits.reshape(1, -1), [3], 0)[0]
    assert (masked.logprob, masked.rank) == (LOGPROB_FLOOR, 201)


def test_a09_without_logprobs_nothing_is_reported(ops: Ops) -> None:
    assert one(ops, logits_of(9)[0], row(temperature=0.0)).top == []
    only_sampled = one(ops, logits_of(9)[0], row(temperature=0.0, top=0))
    assert only_sampled.top == []
    assert only_sampled.logprob < 0
    assert only_sampled.rank == 1


def test_scores_of_known_tokens(ops: Ops) -> None:
    logits = logits_of(10, 4)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    got = ops.score(logits, [3, 0, VOCAB - 1, VOCAB + 5], 3)
    for i, target in enumerate([3, 0, VOCAB - 1]):
        assert math.isclose(got[i].logprob, exact[i, target], abs_tol=1e-6)
        assert got[i].rank == 1 + int((logits[i] > logits[i, target]).sum())
        assert len(got[i].top) == 3
    assert (got[3].logprob, got[3].rank) == (LOGPROB_FLOOR, VOCAB + 1)  # a padding id


def test_b11_choices_and_positions_draw_differently_and_repeatably(ops: Ops) -> None:
    logits = logits_of(11)[0]
    drawn = [
        [
            one(ops, logits, row(seed=42, choice=c, position=p, temperature=2.0)).token
            for p in range(30)
        ]
        for c in (0, 1, 2, 0)
    ]
    assert drawn[0] == drawn[3]
    assert len({tuple(d) for d in drawn[:3]}) == 3
    assert len(set(drawn[0])) > 5
