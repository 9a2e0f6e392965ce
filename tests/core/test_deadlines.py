"""A request is complete by its deadline, or fails at once, and no step is spent on it after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo.core.deadlines import Deadlines
from octavo.core.request import ChoiceState, FinishReason, Output, Refused, Submission
from octavo.core.sequence import Live
from support.core_driver import Driver, assert_no_leak, small_pool, submission


def late(driver: Driver, request_id: str, choice: int = 0) -> Output:
    final = driver.finals[request_id, choice]
    assert (final.finish_reason, final.error_code) == (FinishReason.ERROR, "deadline_exceeded")
    return final


@pytest.mark.parametrize("lag", [False, True])
def test_waiting_beyond_the_deadline(lag: bool) -> None:
    """One row, and somebody else has it for 20 steps of a second."""
    driver = Driver(small_pool(max_num_seqs=1), lag=lag)
    driver.add(submission("a", [1, 2], max_tokens=20, ignore_eos=True))
    driver.add(submission("b", [3, 4], max_tokens=4, timeout=5.0))
    driver.add(submission("c", [5, 6], max_tokens=2))
    while ("b", 0) not in driver.finals:
        driver.step()
    assert driver.now <= 5.0 + 1 + lag
    assert "waiting to begin at its deadline, 5 s after its arrival" in str(late(driver, "b").error)
    driver.run()
    driver.verify()
    assert not any(event.request_id == "b" and event.kind.value == "row" for event in driver.log)


@pytest.mark.parametrize("lag", [False, True])
def test_running_beyond_the_deadline(lag: bool) -> None:
    driver = Driver(small_pool(), lag=lag)
    driver.add(submission("a", [1, 2], max_tokens=30, ignore_eos=True, timeout=6.0, n=2))
    driver.add(submission("b", [3, 4], max_tokens=12, ignore_eos=True))
    driver.run()
    driver.verify()
    assert "was not complete at its deadline" in str(late(driver, "a").error)
    assert late(driver, "a", 1).error == late(driver, "a").error
    last = max(plan.step for plan in driver.plans if any(row.rid < 2 for row in plan.rows))
    assert last < 6, "no row of it after the deadline"


def test_in_time_is_in_time() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1, 2], max_tokens=3, ignore_eos=True, timeout=100.0))
    driver.run()
    driver.verify()
    assert driver.finals["a", 0].finish_reason is FinishReason.LENGTH
    assert len(driver.scheduler.books.deadlines) == 0


def test_parked_and_preempted_and_alone() -> None:
    """Whatever it waits for, the deadline is the deadline."""
    driver = Driver(small_pool(num_blocks=8, max_num_batched_tokens=4))
    prompt = list(range(1, 21))
    driver.add(submission("owner", prompt, max_tokens=2, ignore_eos=True))
    driver.add(submission("parked", prompt, max_tokens=2, timeout=3.0))
    driver.add(submission("alone", [1], max_tokens=2, timeout=0.5, alone=True))
    driver.run()
    driver.verify()
    late(driver, "parked")
    late(driver, "alone")
    assert_no_leak(driver.scheduler)


def test_a_resumed_request_keeps_its_deadline_and_is_not_refused() -> None:
    driver = Driver(small_pool())
    first = submission("a", [1, 2], max_tokens=5, arrival=-10.0, timeout=4.0)
    with pytest.raises(Refused) as refusal:
        driver.scheduler.add(first, now=0.0)
    assert refusal.value.code == "deadline_exceeded"

    driver.add(replace(first, resumed=[ChoiceState(0, [9])]))
    driver.run()
    late(driver, "a")


def test_many_deadlines_cost_no_memory_once_met() -> None:
    deadlines = Deadlines()

    def live(number: int, **values: Any) -> Live:
        one = Live(Submission(str(number), [1], submission("x", [1]).params, 1, **values), b"")
        one.unfinished = 1
        return one

    for number in range(10_000):
        one = live(number, timeout=1000.0)
        deadlines.add(one)
        one.unfinished = 0
        deadlines.remove(one)
        deadlines.add(live(number))
    assert len(deadlines) == 0
    assert len(deadlines._heap) < 200
    soon, later = live(1, timeout=5.0), live(2, timeout=6.0)
    deadlines.add(later)
    deadlines.add(soon)
    assert deadlines.due(4.9) == []
    assert deadlines.due(5.0) == [soon]
    assert deadlines.due(9.0) == [later]
