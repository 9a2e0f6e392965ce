"""The peak formula, the quantiles of output lengths, and the rate behind Retry-After."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.admission import MIN_OBSERVED, PRIOR_OUTPUTS, WINDOW, OutputLengths, peak_blocks
from octavo.core.throughput import WINDOW as STEPS
from octavo.core.throughput import Throughput

members = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8)


def simulated_peak(lengths: list[tuple[int, int]]) -> int:
    """Blocks of one token, each sequence growing by one a step until it has no more to come."""
    held = sum(blocks for _, blocks in lengths)
    peak = held
    for now in range(1, 61):
        alive = [(left, blocks) for left, blocks in lengths if left >= now]
        peak = max(peak, sum(blocks + now for _, blocks in alive))
    return peak


@given(members)
def test_the_formula_is_the_peak_of_a_simulation(lengths: list[tuple[int, int]]) -> None:
    held = sum(blocks for _, blocks in lengths)
    assert peak_blocks(sorted(lengths), held, 1, cautious=False) == simulated_peak(lengths)


@given(members, st.integers(1, 16), st.integers(0, 9))
def test_caution_never_foresees_less(
    lengths: list[tuple[int, int]], size: int, shared: int
) -> None:
    held = sum(blocks for _, blocks in lengths) + shared
    bold = peak_blocks(sorted(lengths), held, size, cautious=False)
    assert held <= bold <= peak_blocks(sorted(lengths), held, size, cautious=True)


def test_short_ones_leave_before_long_ones_peak() -> None:
    # Together they would need 10 + 100 + 10 blocks; the short one is gone after 10 steps.
    assert peak_blocks([(10, 10), (100, 0)], 10, 1, cautious=False) == 100


def test_without_history_a_prior_bounded_by_the_limit() -> None:
    lengths = OutputLengths()
    assert lengths.remaining(0, 100_000, caution=0) == PRIOR_OUTPUTS
    assert lengths.remaining(0, 10, caution=0) == 10
    assert lengths.remaining(1000, 100_000, caution=0) == 500


def test_quantiles_are_of_the_outputs_that_are_longer() -> None:
    lengths = OutputLengths()
    for outputs in range(1, 101):
        lengths.record(outputs)
    assert lengths.remaining(0, 1000, caution=0) == 81
    assert lengths.remaining(0, 1000, caution=1) == 96
    assert lengths.remaining(90, 1000, caution=0) == 99 - 90
    assert lengths.remaining(0, 1000, caution=2) == 1000
    assert lengths.remaining(0, 50, caution=0) == 50


@pytest.mark.parametrize("more", [0, 1, 40])
def test_the_window_forgets(more: int) -> None:
    rng = Random(more)
    outputs = [rng.randint(0, 50) for _ in range(WINDOW + more)]
    lengths, fresh = OutputLengths(), OutputLengths()
    for n in outputs:
        lengths.record(n)
    for n in outputs[-WINDOW:]:
        fresh.record(n)
    for produced in (0, 10, 49):
        assert lengths.remaining(produced, 99, 0) == fresh.remaining(produced, 99, 0)


@given(
    st.lists(st.integers(0, 300), max_size=3 * MIN_OBSERVED),
    st.integers(0, 400),
    st.integers(0, 400),
    st.integers(0, 3),
)
def test_a_guess_stays_within_the_limit(
    seen: list[int], produced: int, more: int, caution: int
) -> None:
    lengths = OutputLengths()
    for n in seen:
        lengths.record(n)
    assert min(1, more) <= lengths.remaining(produced, produced + more, caution) <= more


def test_throughput_needs_a_step_that_took_time() -> None:
    rate = Throughput()
    assert rate.retry_after(1e9) == 1.0
    rate.record(1.0, 100, began=1.0)
    assert (rate.tokens_per_second, rate.prompt_tokens_per_second, rate.step_seconds) == (None,) * 3
    rate.record(3.0, 100, began=2.0)
    assert (rate.tokens_per_second, rate.step_seconds) == (50.0, 2.0)


def test_rest_is_not_computing() -> None:
    rate = Throughput()
    rate.record(1.0, 100, began=0.0)
    rate.rest()
    rate.record(101.0, 100, began=100.0)
    assert rate.tokens_per_second == 100.0


def test_prompts_are_judged_by_large_steps() -> None:
    rate = Throughput()
    for i in range(1, 101):
        tokens = 500 if i % 10 == 0 else 8
        rate.record(float(i), tokens, began=float(i - 1))
    assert rate.prompt_tokens_per_second == 500.0
    assert rate.tokens_per_second == pytest.approx(57.2)


@pytest.mark.parametrize(("tokens", "seconds"), [(10, 1.0), (950, 10.0), (10**9, 600.0)])
def test_retry_after_is_whole_and_bounded(tokens: int, seconds: float) -> None:
    rate = Throughput()
    for i in range(3 * STEPS):
        rate.record(float(i), 100, began=float(i))
    assert rate.tokens_per_second == 100.0
    assert rate.retry_after(tokens) == seconds
