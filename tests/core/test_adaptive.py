"""The controller of the adaptive batch, and limits that move under running work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.adaptive import RULES, AdaptiveBatch
from support.core_driver import Driver, small_pool, submission


def feed(control: AdaptiveBatch, seconds: float, times: int = 10, running: int = 64) -> None:
    for _ in range(times):
        control.note_tpot(seconds, running)


def test_the_step_rule_after_every_ten_measurements() -> None:
    control = AdaptiveBatch(100, 1000, tpot=0.2, rule="step")
    feed(control, 0.3, times=9)
    assert (control.rows, control.tokens) == (100, 1000)
    feed(control, 0.3, times=1, running=100)
    assert (control.rows, control.tokens) == (80, 800)
    feed(control, 0.1)
    assert (control.rows, control.tokens) == (100, 1000), "up to the maximum"
    assert (control.raised, control.lowered) == (1, 1)
    assert control.tpot.mean == pytest.approx(0.1)


def test_lowering_begins_at_the_rows_that_run() -> None:
    control = AdaptiveBatch(100, 1000, tpot=0.2, rule="step")
    feed(control, 0.3, running=10)
    assert control.rows == 8
    feed(control, 0.3, running=10)
    assert control.rows == 6


@pytest.mark.parametrize("rule", RULES)
def test_down_to_one_and_up_again(rule: str) -> None:
    control = AdaptiveBatch(16, 64, tpot=0.01, rule=rule)
    feed(control, 1.0, times=500, running=1)
    assert control.rows in (1, 2) and control.tokens == 1
    for _ in range(60):
        feed(control, 0.001, running=control.rows)
    assert (control.rows, control.tokens) == (16, 64)


def test_two_targets_are_both_held() -> None:
    control = AdaptiveBatch(100, 1000, tpot=0.2, latency=1.0, rule="step")
    for _ in range(10):
        control.note_latency(2.0, 100)
    assert control.tokens == 800
    feed(control, 0.1, running=100)
    assert control.tokens == 640, "the latency is still over its target"


@given(
    st.sampled_from(sorted(RULES)),
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 64)), max_size=300),
)
def test_the_limits_stay_within_theirs(rule: str, history: list[tuple[float, int]]) -> None:
    control = AdaptiveBatch(64, 512, tpot=0.05, latency=1.0, rule=rule)
    for seconds, running in history:
        control.note_tpot(seconds, running)
        control.note_latency(seconds, running)
        assert 1 <= control.rows <= 64
        assert 1 <= control.tokens <= 512


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("target", [0.001, 1.5])
def test_nothing_stalls_under_a_target_that_cannot_be_held(target: float, lag: bool) -> None:
    """A step takes a second here."""
    driver = Driver(small_pool(num_blocks=40, target_tpot=target), lag=lag)
    for i in range(30):
        driver.add(submission(f"r{i}", [i] * 11, seed=i, max_tokens=20, n=1 + i % 2))
    driver.run()
    driver.verify()
    limits = driver.scheduler.books.limits
    assert (limits.rows <= 2) is (target < 1.0)


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match=r"target_tpot is 0\.0; it must be above 0"):
        small_pool(target_tpot=0.0)
    with pytest.raises(ValueError, match=r"adaptive_rule is 'bold'; known are proportional, step"):
        small_pool(adaptive_rule="bold")
