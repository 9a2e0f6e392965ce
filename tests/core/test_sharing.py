"""Prefix hits, full hits (C05) and prefixes that are being computed right now."""

from __future__ import annotations

import pytest

from octavo.core.events import EventKind
from octavo.core.sequence import State, Wait
from octavo.core.stats import Cause
from support.core_driver import Driver, small_pool, submission


def computed(driver: Driver) -> int:
    return driver.scheduler.counters.computed_tokens


@pytest.mark.parametrize("budget", [2, 3, 16])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_c05_a_full_hit_computes_the_last_token_unwritten(blocks: int, budget: int) -> None:
    prompt = list(range(blocks * 4))
    driver = Driver(small_pool(max_num_batched_tokens=budget))
    driver.add(submission("a", prompt, max_tokens=1))
    driver.run()
    before = computed(driver)
    driver.add(submission("b", prompt, max_tokens=1))
    driver.run()
    driver.verify()
    assert driver.collected["a", 0] == driver.collected["b", 0]
    assert driver.told["b"][0].cached_tokens == len(prompt) - 1
    assert computed(driver) == before + 1
    row = driver.plans[-1].rows[0]
    assert (row.start, row.write_from) == (len(prompt) - 1, len(prompt))


@pytest.mark.parametrize("lag", [False, True])
def test_c05_two_identical_requests_in_the_same_step(lag: bool) -> None:
    driver = Driver(small_pool(), lag=lag)
    for name in "ab":
        driver.add(submission(name, list(range(8)), max_tokens=4))
    driver.run()
    driver.verify()
    assert driver.collected["a", 0] == driver.collected["b", 0]
    assert driver.told["b"][0].cached_tokens == 7


def test_c05_prompt_logprobs_of_a_cached_prompt_are_whole() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", list(range(8)), max_tokens=1))
    driver.run()
    driver.add(submission("b", list(range(8)), max_tokens=1, prompt_logprobs=0))
    driver.run()
    driver.verify()
    assert driver.told["b"][0].cached_tokens == 0


@pytest.mark.parametrize("common", [3, 4, 5, 8])
def test_b01_prefixes_around_block_borders(common: int) -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1] * 9, max_tokens=2))
    driver.run()
    driver.add(submission("b", [1] * common + [2] * (9 - common), max_tokens=2))
    driver.run()
    driver.verify()
    assert driver.told["b"][0].cached_tokens == common // 4 * 4


def test_outputs_are_found_by_the_next_turn_of_a_chat() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", list(range(6)), max_tokens=7))
    driver.run()
    prompt = [*range(6), *driver.collected["a", 0], 1, 2]
    driver.add(submission("b", prompt, max_tokens=2))
    driver.run()
    driver.verify()
    # The 13th token was sampled and never computed, so three blocks are full.
    assert driver.told["b"][0].cached_tokens == 12


@pytest.mark.parametrize("change", [{"salt": "x"}, {"adapter": "x"}])
def test_salt_and_adapter_separate(change: dict[str, str]) -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1] * 8, max_tokens=1))
    driver.run()
    driver.add(submission("b", [1] * 8, max_tokens=1, **change))
    driver.run()
    assert driver.told["b"][0].cached_tokens == 0


def test_reset_forgets_and_running_ones_go_on() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1] * 8, max_tokens=6))
    driver.step()
    assert driver.scheduler.reset_prefix_cache() == 2
    driver.add(submission("b", [1] * 8, max_tokens=1))
    driver.run()
    driver.verify()
    assert driver.told["b"][0].cached_tokens == 0


def test_hashes_may_be_given_instead_of_tokens() -> None:
    driver = Driver(small_pool())
    for name in "ab":
        driver.scheduler.add(submission(name, [0] * 8, max_tokens=1), [b"x" * 16, b"y" * 16])
        driver.requests[name] = submission(name, [0] * 8, max_tokens=1)
        driver.run()
    assert driver.told["b"][0].cached_tokens == 7


def parked(driver: Driver) -> list[str]:
    return [
        s.live.submission.request_id
        for live in driver.scheduler.books.live.values()
        for s in live.sequences
        if s.state is State.PARKED
    ]


def shared_chunks(policy: str = "fcfs", fails: int = -1, **second: object) -> Driver:
    """The last of the three chunks of `a` is in flight when `b`, with the same prompt, comes."""
    driver = Driver(
        small_pool(num_blocks=64, max_num_batched_tokens=12, policy=policy),
        lag=True,
        fail=lambda plan, row: "broken" if plan.step == fails else None,
    )
    driver.add(submission("a", list(range(30)), max_tokens=3))
    driver.step()
    driver.step()
    driver.add(submission("b", list(range(30)), max_tokens=3, **second))
    driver.step()
    return driver


def test_a_request_waits_for_a_prefix_in_flight_and_computes_it_not_again() -> None:
    driver = shared_chunks()
    assert parked(driver) == ["b"]
    assert driver.scheduler.books.live["b"].sequences[0].wait is Wait.PREFIX
    driver.run()
    driver.verify()
    assert driver.told["b"][0].cached_tokens == 28
    # The two tokens after the last full block, and two outputs fed back, of each.
    assert computed(driver) == 28 + 2 * (2 + 2)


def test_one_waiter_takes_over_when_the_owner_is_aborted() -> None:
    driver = shared_chunks()
    driver.add(submission("c", list(range(30)), max_tokens=3))
    driver.abort("a")
    assert parked(driver) == []
    driver.run()
    driver.verify()
    admitted = [e.request_id for e in driver.log if e.kind is EventKind.ADMITTED]
    assert admitted == ["a", "b", "c"]
    assert driver.told["c"][0].cached_tokens == 28


def test_one_waiter_takes_over_when_the_owner_is_preempted() -> None:
    driver = shared_chunks()
    books = driver.scheduler.books
    books.yield_later(books.running[0], Cause.BLOCKS)
    driver.run()
    driver.verify()
    assert driver.finals["a", 0].preemptions == 1


def test_one_waiter_takes_over_when_the_owner_fails() -> None:
    driver = shared_chunks(fails=2)
    assert parked(driver) == ["b"]
    driver.run()
    driver.verify()
    assert driver.finals["a", 0].error == "broken"
    assert driver.finals["b", 0].error is None


def test_a_waiter_lends_its_priority() -> None:
    driver = shared_chunks("priority", priority=-5)
    owner = driver.scheduler.books.running[0]
    assert (owner.live.submission.priority, owner.priority) == (0, -5)
    driver.abort("b")
    assert owner.priority == 0


def test_prompt_logprobs_neither_wait_nor_hit() -> None:
    driver = shared_chunks(prompt_logprobs=0)
    assert parked(driver) == []
    driver.run()
    driver.verify()
    assert driver.told["b"][0].cached_tokens == 0


def test_a_waiter_can_be_aborted() -> None:
    driver = shared_chunks()
    driver.abort("b")
    driver.run()
    driver.verify()
