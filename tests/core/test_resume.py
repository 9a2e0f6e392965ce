"""Requests resumed after a crash, and requests that must be alone in their steps."""

from __future__ import annotations

import itertools

import pytest

from octavo.core.request import ChoiceState, FinishReason
from support.core_driver import Driver, expected_stream, small_pool, submission


@pytest.mark.parametrize("lag", [False, True])
def test_resumed_choices_go_on_where_they_were(lag: bool) -> None:
    driver = Driver(small_pool(num_blocks=32), lag=lag)
    request = submission("a", list(range(6)), seed=3, n=3, max_tokens=9, logprobs=0)
    whole = [
        expected_stream(request, c, driver.scheduler.config, driver.source)[0] for c in range(3)
    ]
    request.resumed = [
        ChoiceState(0, whole[0][:4], -10.0),
        ChoiceState(1, whole[1], -20.0, finished=True),
        ChoiceState(2, [], 0.0),
    ]
    driver.add(request)
    driver.run()
    driver.verify()
    assert [driver.collected["a", c] for c in range(3)] == whole
    assert ("a", 1) not in driver.finals
    made_up = [driver.executor.made_up(t, 10 + i).logprob for i, t in enumerate(whole[0][4:])]
    assert driver.finals["a", 0].cumulative_logprob == -10.0 + sum(made_up)
    history = {new.choice: new.history for plan in driver.plans for new in plan.admitted}
    assert history[0] == [*range(6), *whole[0][:4]]
    assert 1 not in history


def test_resumed_without_outputs_forks_as_if_new() -> None:
    driver = Driver(small_pool())
    driver.add(
        submission(
            "a",
            list(range(6)),
            n=2,
            max_tokens=3,
            prompt_logprobs=0,
            resumed=[ChoiceState(0), ChoiceState(1)],
        )
    )
    driver.run()
    driver.verify()
    assert driver.scheduler.counters.copies == 1


def test_resumed_with_nothing_left_is_no_work() -> None:
    driver = Driver(small_pool())
    driver.scheduler.add(submission("a", [1], resumed=[ChoiceState(0, [2], 0.0, finished=True)]))
    assert not driver.scheduler.has_work()


def test_resumed_requests_are_not_turned_away_by_a_full_queue() -> None:
    driver = Driver(small_pool(max_waiting_requests=1))
    for name in "abc":
        driver.add(submission(name, [1, 2], max_tokens=3, resumed=[ChoiceState(0)]))
    driver.run()
    driver.verify()


@pytest.mark.parametrize("lag", [False, True])
def test_alone_shares_no_step_and_alternates(lag: bool) -> None:
    driver = Driver(small_pool(num_blocks=64), lag=lag)
    for i in range(3):
        driver.add(submission(f"r{i}", [i] * 5, seed=i, max_tokens=20))
    driver.add(submission("alone", [9] * 5, max_tokens=10, n=2, alone=True))
    driver.add(submission("next", [8] * 5, max_tokens=4, alone=True))
    driver.run()
    driver.verify()
    names = {
        new.rid: next(e.request_id for e in driver.log if e.rid == new.rid)
        for plan in driver.plans
        for new in plan.admitted
    }
    steps = [{names[row.rid] for row in plan.rows} for plan in driver.plans]
    assert all(len(step) == 1 for step in steps if step & {"alone", "next"})
    turns = ["alone" in step or "next" in step for step in steps]
    together = turns[: len(turns) - turns[::-1].index(True)]
    assert all(a != b for a, b in itertools.pairwise(together))
    order = [name for step in steps for name in step if name in ("alone", "next")]
    assert order == sorted(order)


def test_an_alone_request_that_waits_for_its_turn_can_be_aborted() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1] * 5, max_tokens=4, alone=True))
    driver.add(submission("b", [2] * 5, max_tokens=4, alone=True, n=2))
    driver.add(submission("c", [3] * 5, max_tokens=4, alone=True))
    assert driver.scheduler.stats().waiting == 3
    driver.step()
    driver.abort("b")
    driver.run()
    driver.verify()
    assert driver.finals["b", 1].finish_reason == FinishReason.ABORT
