"""n > 1: one prefill, shared blocks, copy-on-write (case C10), and choices that come and go."""

from __future__ import annotations

import pytest

from octavo.core.request import FinishReason
from octavo.core.stats import Cause
from support.core_driver import Driver, small_pool, submission


def prompt_tokens(driver: Driver, length: int) -> int:
    """Tokens computed at positions of the prompt."""
    rows = [row for plan in driver.plans for row in plan.rows]
    return sum(len(row.tokens) for row in rows if row.start < length)


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize(("length", "copies"), [(6, 3), (7, 3), (8, 0)])
def test_c10_exactly_n_minus_1_copies_of_a_partial_block(
    length: int, copies: int, lag: bool
) -> None:
    driver = Driver(small_pool(num_blocks=64), lag=lag)
    driver.add(submission("a", list(range(length)), n=4, max_tokens=8))
    driver.run()
    driver.verify()
    assert sum(len(plan.copies) for plan in driver.plans) == copies
    assert driver.scheduler.counters.copies == copies


def test_the_prompt_is_computed_once_and_its_last_token_again_by_each_fork() -> None:
    driver = Driver(small_pool(num_blocks=64))
    driver.add(submission("a", list(range(10)), n=4, max_tokens=3))
    driver.run()
    assert prompt_tokens(driver, 10) == 10 + 3
    again = [row for row in driver.plans[1].rows if row.start == 9]
    assert [(row.tokens, row.write_from) for row in again] == [([9], 10)] * 3


def test_choices_differ_and_repeat() -> None:
    streams = []
    for _ in range(2):
        driver = Driver(small_pool(num_blocks=64))
        driver.add(submission("a", [1, 2, 3], n=3, max_tokens=6, seed=42))
        driver.run()
        driver.verify()
        streams.append([tuple(driver.collected["a", c]) for c in range(3)])
    assert streams[0] == streams[1]
    assert len(set(streams[0])) == 3


def test_the_leader_may_end_with_its_first_token() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1, 2, 3], n=3, max_tokens=1))
    driver.run()
    driver.verify()
    assert driver.scheduler.counters.computed_tokens == 3 + 2


def test_another_choice_leads_when_the_leader_is_aborted() -> None:
    driver = Driver(small_pool(max_num_batched_tokens=4))
    driver.add(submission("a", list(range(10)), n=3, max_tokens=3))
    driver.step()
    driver.abort("a", 0)
    driver.run()
    driver.verify()
    assert driver.finals["a", 0].finish_reason == FinishReason.ABORT
    assert len(driver.collected["a", 1]) == len(driver.collected["a", 2]) == 3


def test_a_waiting_fork_can_be_aborted() -> None:
    driver = Driver(small_pool(max_num_batched_tokens=4))
    driver.add(submission("a", list(range(10)), n=3, max_tokens=3))
    driver.step()
    driver.abort("a", 2)
    driver.run()
    driver.verify()
    assert driver.finals["a", 2].finish_reason == FinishReason.ABORT


@pytest.mark.parametrize("caching", [False, True])
def test_forks_without_a_free_row_are_queued(caching: bool) -> None:
    driver = Driver(small_pool(max_num_seqs=2, enable_prefix_caching=caching))
    driver.add(submission("a", list(range(9)), n=5, max_tokens=4))
    driver.run()
    driver.verify()


def test_c10_fork_then_preempt_the_leader() -> None:
    driver = Driver(small_pool(num_blocks=64))
    driver.add(submission("a", list(range(6)), n=4, max_tokens=8))
    driver.step()
    driver.step()
    books = driver.scheduler.books
    leader = books.live["a"].leader
    assert leader is not None
    books.preempt(leader, Cause.BLOCKS)
    driver.run()
    driver.verify()
    assert driver.finals["a", 0].preemptions == 1
