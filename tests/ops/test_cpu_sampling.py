"""Sampling and scoring on the compiled kernels against their numpy twin.

tests/ops/test_sampling.py runs on both backends and says what sampling is; here are the sizes,
the selections without a sort, the noise, and what only the kernels could get wrong.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops import NONFINITE_LOGITS, Ops, SampledRow, SampleRow
from octavo.ops.native import load_native, native_available, native_reason
from octavo.ops.noise import exponential
from octavo.ops.reference_sampling import sample_rows, score_rows
from octavo.ops.select import select_ops
from support import native_isas

pytestmark = pytest.mark.skipif(not native_available(), reason=native_reason())

SIZES = [1, 2, 7, 8, 9, 16, 31, 300, 511, 512, 513, 1025, 4999, 49_152]


@pytest.fixture(scope="module")
def ops() -> Ops:
    return select_ops("cpu", threads=2)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)


def logits_of(seed: int, size: int, shape: str = "wide") -> np.ndarray:
    """`shape`: "wide" like a language model's; "tied" of few values; "flat"; "holes" with -inf."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 3, size)
    if shape == "wide":
        x[rng.integers(0, size, 1 + size // 100)] += 8
    elif shape == "tied":
        x = np.round(x)
    elif shape == "flat":
        x *= 1e-3
    elif shape == "holes":
        x[rng.random(size) < 0.5] = -np.inf
        x[rng.integers(0, size)] = 1.0
    return x.astype(np.float32)


@st.composite
def questions(draw: st.DrawFn) -> tuple[np.ndarray, SampleRow]:
    """A row of logits, and how it is to be sampled."""
    size = draw(st.sampled_from(SIZES))
    shape = draw(st.sampled_from(["wide", "tied", "flat", "holes"]))
    ids = st.integers(-3, size + 3)
    counts = st.dictionaries(ids, st.integers(1, 5), max_size=12)
    mask = draw(st.none() | st.binary(min_size=1, max_size=64))
    row = SampleRow(
        seed=draw(st.integers(0, 2**64 - 1)),
        choice=draw(st.integers(0, 127)),
        position=draw(st.integers(0, 10_000)),
        temperature=draw(st.sampled_from([0.0, 1e-320, 1e-3, 0.3, 1.0, 1.7, 30.0])),
        top_k=draw(st.sampled_from([-1, 0, 1, 2, 20, size - 1, size, 800, 10**30])),
        top_p=draw(st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-12, 1.0])),
        min_p=draw(st.sampled_from([0.0, 1e-4, 0.05, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.7, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, -0.5, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.5, 0.5])),
        prompt_counts=draw(counts),
        output_counts=draw(counts),
        logit_bias=draw(st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=5)),
        banned=draw(st.lists(ids, max_size=3)),
        mask=mask,
        top=draw(st.sampled_from([None, 0, 1, 5, 900, 10**30])),
    )
    return logits_of(draw(st.integers(0, 10_000)), size, shape), row


def twin(logits: np.ndarray, row: SampleRow) -> SampledRow:
    return sample_rows(logits.reshape(1, -1), [row])[0]


def tokens_within_rounding(logits: np.ndarray, row: SampleRow) -> set[int]:
    """What the twin draws when its parameters are off by a millionth or two."""
    near = (1 - 2e-6, 1.0, 1 + 2e-6)
    found = set()
    for t, p, m in product(near, near, near):
        top_p = row.top_p if row.top_p in (0.0, 1.0) else min(row.top_p * p, 1.0)
        asked = replace(row, temperature=row.temperature * t, top_p=top_p, min_p=row.min_p * m)
        if asked.min_p <= 1.0:
            found.add(twin(logits, asked).token)
    return found


def assert_same(got: SampledRow, expected: SampledRow, logits: np.ndarray, row: SampleRow) -> None:
    assert got.error == expected.error
    if got.token != expected.token:
        assert got.token in tokens_within_rounding(logits, row)
        return
    assert got.rank == expected.rank
    assert abs(got.logprob - expected.logprob) < 2e-6
    assert [t for t, _ in got.top] == [t for t, _ in expected.top]
    assert np.allclose([p for _, p in got.top], [p for _, p in expected.top], rtol=0, atol=2e-6)


@settings(max_examples=250, deadline=None)
@given(question=questions())
def test_every_combination_is_what_the_twin_does(
    ops: Ops, question: tuple[np.ndarray, SampleRow]
) -> None:
    logits, row = question
    got = ops.sample(logits.reshape(1, -1), [row])[0]
    assert_same(got, twin(logits, row), logits, row)


@pytest.mark.parametrize("shape", ["wide", "tied", "flat", "holes"])
def test_a_vocabulary_of_200_000(ops: Ops, shape: str) -> None:
    size = 200_003
    logits = logits_of(5, size, shape)
    for position, options in enumerate(
        [
            {"temperature": 0.0, "top": 20},
            {},
            {"top_k": 50, "top": 5},
            {"top_k": 100_000, "top_p": 0.9},
            {"top_p": 0.9},
            {"top_p": 0.5, "min_p": 0.2},
            {"min_p": 0.1, "temperature": 2.0},
        ]
    ):
        row = SampleRow(seed=3, choice=1, position=position, **options)  # type: ignore[arg-type]
        got = ops.sample(logits.reshape(1, -1), [row])[0]
        assert_same(got, twin(logits, row), logits, row)


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    shape=st.sampled_from(["wide", "tied", "holes"]),
    top=st.sampled_from([0, 1, 3, 40, 2000, 10**30]),
    seed=st.integers(0, 1000),
)
def test_scores_are_the_twins(ops: Ops, size: int, shape: str, top: int, seed: int) -> None:
    logits = np.stack([logits_of(seed + i, size, shape) for i in range(4)])
    targets = [0, size - 1, size, -1]
    got = ops.score(logits, targets, top)
    for one, expected in zip(got, score_rows(logits, targets, top), strict=True):
        assert (one.token, one.rank) == (expected.token, expected.rank)
        assert abs(one.logprob - expected.logprob) < 2e-6
        assert [t for t, _ in one.top] == [t for t, _ in expected.top]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 2**20),
    position=st.integers(0, 2**40),
    size=st.sampled_from([1, 7, 8, 1000, 30_011]),
)
def test_among_equals_the_least_noise_wins(
    ops: Ops, seed: int, choice: int, position: int, size: int
) -> None:
    row = SampleRow(seed=seed, choice=choice, position=position)
    noise = exponential(seed, choice, position, np.arange(size))
    assert ops.sample(np.zeros((1, size), np.float32), [row])[0].token == int(np.argmin(noise))


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 7},
        {"top_p": 0.7},
        {"top_p": 0.95},
        {"min_p": 0.3},
        {"top_k": 12, "top_p": 0.8, "min_p": 0.2},
    ],
)
@pytest.mark.parametrize("shape", ["spread", "tied"])
def test_just_the_tokens_that_pass_the_filters_are_drawn(
    ops: Ops, filters: dict[str, Any], shape: str
) -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(0, 1, 40) if shape == "spread" else np.round(rng.normal(0, 1, 40), 1)
    logits = x.astype(np.float32)
    order = sorted(range(40), key=lambda t: (-logits[t], t))[: filters.get("top_k", 40)]
    p = np.exp(logits[order].astype(np.float64))
    p /= p.sum()
    kept = int((np.cumsum(p) - p < filters.get("top_p", 1.0)).sum())
    expected = {
        t for t, q in list(zip(order, p, strict=True))[:kept] if q >= filters.get("min_p", 0) * p[0]
    }
    rows = [SampleRow(seed=1, choice=0, position=i, **filters) for i in range(3000)]
    drawn = ops.sample(np.broadcast_to(logits, (3000, 40)), rows)
    assert {one.token for one in drawn} == expected


def test_draws_follow_the_probabilities(ops: Ops) -> None:
    size, draws = 60, 30_000
    logits = logits_of(3, size, "tied") / 2
    rows = [SampleRow(seed=i, choice=0, position=9, temperature=1.5) for i in range(draws)]
    tokens = [one.token for one in ops.sample(np.broadcast_to(logits, (draws, size)), rows)]
    p = np.exp(logits.astype(np.float64) / 1.5)
    expected = draws * p / p.sum()
    seen = np.bincount(tokens, minlength=size)
    likely = expected >= 5
    chi2 = ((seen - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = likely.sum() - 1
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom)


def mixed_rows(count: int) -> list[SampleRow]:
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"top": 5},
        {"top_k": 20, "top": 0},
        {"top_p": 0.9},
        {"top_p": 0.9, "top_k": 900, "min_p": 0.01, "top": 3},
        {"repetition_penalty": 1.2, "prompt_counts": {1: 2, 5: 1}, "output_counts": {5: 3}},
        {"logit_bias": {3: 5.0}, "banned": [2], "presence_penalty": 1.0, "output_counts": {9: 1}},
        {"mask": bytes(range(255)), "temperature": 3.0},
    ]
    return [
        SampleRow(seed=i, choice=i % 3, position=7 * i, **options[i % len(options)])
        for i in range(count)
    ]


@pytest.mark.parametrize("size", [33, 2011, 20_000])
def test_a_row_depends_on_neither_its_neighbours_nor_the_threads(size: int) -> None:
    count = 40
    rows = mixed_rows(count)
    logits = np.stack([logits_of(i, size) for i in range(count)])
    logits[11, 4] = np.nan
    pools = [select_ops("cpu", threads=n) for n in (1, 2, 3)]
    alone = [pools[0].sample(logits[i : i + 1], [rows[i]])[0] for i in range(count)]
    assert alone[11].error == NONFINITE_LOGITS
    targets = [(31 * i) % size for i in range(count)]
    scored = [pools[0].score(logits[i : i + 1], targets[i : i + 1], 4)[0] for i in range(count)]
    for ops in pools:
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(count).tolist()
            mixed = ops.sample(logits[order], [rows[i] for i in order])
            assert mixed == [alone[i] for i in order]
            told = ops.score(logits[order], [targets[i] for i in order], 4)
            assert told == [scored[i] for i in order]


def test_the_head_may_be_wider_than_the_vocabulary(ops: Ops) -> None:
    wide = np.stack([logits_of(i, 1100) for i in range(5)])
    wide[:, 1001:] = np.nan
    rows = mixed_rows(5)
    assert ops.sample(wide[:, :1001], rows) == ops.sample(wide[:, :1001].copy(), rows)
    assert ops.sample(wide[::2, :1001], rows[::2]) == ops.sample(wide[:, :1001], rows)[::2]


def test_no_rows(ops: Ops) -> None:
    assert ops.sample(np.zeros((0, 5), np.float32), []) == []
    assert ops.score(np.zeros((0, 5), np.float32), [], 3) == []


def test_what_does_not_fit_is_told(ops: Ops) -> None:
    rows = mixed_rows(3)
    logits = np.zeros((3, 64), np.float32)
    with pytest.raises(ValueError, match="logits have 3 rows, but 2 are described"):
        ops.sample(logits, rows[:2])
    with pytest.raises(ValueError, match="logits have 3 rows, but 4 are described"):
        ops.score(logits, [1, 2, 3, 4], 0)
    with pytest.raises(ValueError, match="logits have 0 columns"):
        ops.sample(logits[:, :0], rows)
    with pytest.raises(ValueError, match="must lie together"):
        ops.sample(np.zeros((64, 3), np.float32).T, rows)
    with pytest.raises(ValueError, match="top is -1"):
        ops.score(logits, [1, 2, 3], -1)
    for wrong in (logits.astype(np.float64), logits[0], None):
        with pytest.raises(TypeError):
            ops.sample(wrong, rows)
    with pytest.raises(OverflowError):
        ops.score(logits, [1, 2, 2**70], 0)


def test_lists_that_do_not_delimit_their_rows_are_refused() -> None:
    native, _ = load_native()
    assert native is not None
    pool = native.Pool(1)
    logits, ids = np.zeros((2, 8), np.float32), np.arange(4)
    keys = np.zeros((2, 3), np.uint64)
    numbers, limits = np.ones((2, 6)), np.zeros((2, 3), np.int64)

    def sample(**lists: Any) -> Any:
        return native.sample(logits, keys, numbers, limits, pool, **lists)

    assert len(sample(banned=(np.array([0, 1, 4]), ids))) == 2
    for starts in ([0, 4], [0, 5, 4], [0, 2, 3], [1, 2, 4], [0, -1, 4], [0, 1, 5], [0, 1, 4, 4]):
        with pytest.raises(ValueError, match="banned: the starts do not delimit lists for 2 rows"):
            sample(banned=(np.array(starts), ids))
    with pytest.raises(ValueError, match="output: the starts"):
        sample(output=(np.array([0, 1, 4]), ids, np.zeros(3, np.float32)))
    for short in (keys[:, :2].copy(), keys[:1]):
        with pytest.raises(ValueError, match=r"keys must have|rows, but"):
            native.sample(logits, short, numbers, limits, pool)
    with pytest.raises(ValueError, match="numbers must be"):
        native.sample(logits, keys, numbers[:, :5].copy(), limits, pool)
    with pytest.raises(ValueError, match="limits must be"):
        native.sample(logits, keys, numbers, limits[:1], pool)
    with pytest.raises(TypeError):
        native.sample(logits, keys, numbers, limits.astype(np.float64), pool)
