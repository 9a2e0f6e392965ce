"""Pools too small for what is asked: cases C01, C02, C03, C06, C07 and B03."""

from __future__ import annotations

import itertools

import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.events import EventKind
from octavo.core.request import FinishReason, Refused
from octavo.core.stats import Cause
from support.core_driver import Driver, small_pool, submission
from support.core_fuzz import Optimist


def pool_of_16() -> SchedulerConfig:
    return SchedulerConfig(num_blocks=16, block_size=16, max_model_len=4096)


def test_c01_a_prompt_beyond_the_pool_is_refused_with_the_numbers() -> None:
    driver = Driver(pool_of_16())
    with pytest.raises(Refused, match=r"304 tokens.*prompt of 300.*whole cache has 256") as refusal:
        driver.add(submission("big", [1] * 300, max_tokens=5))
    assert refusal.value.code == "request_too_large"
    for i in range(5):
        driver.add(submission(f"r{i}", [i] * 20, seed=i, max_tokens=5))
    driver.run()
    driver.verify()
    assert driver.scheduler.stats().refused_total == {"request_too_large": 1}


@pytest.mark.parametrize(("n", "fits"), [(2, True), (3, True), (4, False)])
def test_c01_choices_whose_sum_exceeds_the_pool(n: int, fits: bool) -> None:
    driver = Driver(pool_of_16())
    request = submission("a", [1] * 215, n=n, max_tokens=60)
    if fits:
        driver.add(request)
        driver.run()
        driver.verify()
    else:
        with pytest.raises(Refused, match="4 choices") as refusal:
            driver.add(request)
        assert refusal.value.code == "request_too_large"


def test_c01_alone_it_ends_with_length_at_the_pool_limit() -> None:
    driver = Driver(pool_of_16())
    driver.add(submission("a", [1] * 200, max_tokens=1000))
    driver.add(submission("b", [2] * 20, max_tokens=5))
    driver.run()
    driver.verify()
    assert driver.finals["a", 0].finish_reason == FinishReason.LENGTH
    assert len(driver.collected["a", 0]) == 256 - 200 + 1
    assert driver.finals["a", 0].preemptions == 0


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("blocks", [16, 20, 40])
def test_c02_ten_requests_of_eight_choices(blocks: int, lag: bool) -> None:
    driver = Driver(small_pool(num_blocks=blocks, max_model_len=60), lag=lag)
    for i in range(10):
        driver.add(submission(f"r{i}", [i] * 5, seed=i, n=8, max_tokens=30))
    driver.run()
    driver.verify()
    assert driver.scheduler.stats().finished_total == {"length": 80}


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("steps", range(6))
def test_c03_aborts_in_every_phase_leave_nothing(steps: int, lag: bool) -> None:
    driver = Driver(small_pool(max_num_batched_tokens=4, max_model_len=1000), lag=lag)
    for i in range(3):
        driver.add(submission(f"r{i}", list(range(12)), seed=i, n=1 + i, max_tokens=900))
    for _ in range(steps):
        driver.step()
    for i in range(3):
        driver.abort(f"r{i}")
        driver.abort(f"r{i}")
    driver.run(limit=3)
    assert {final.finish_reason for final in driver.finals.values()} == {FinishReason.ABORT}
    assert len(driver.finals) == 6
    assert driver.scheduler.stats().finished_total == {"abort": 6}


def test_c03_an_unknown_request_is_nothing_to_abort() -> None:
    driver = Driver(small_pool())
    assert driver.scheduler.abort("nobody", None, 0.0) == []


def ideal_tokens(driver: Driver) -> int:
    """What would be computed without preemption (the last token of a sequence is not fed back)."""
    return sum(
        len(driver.requests[rid].prompt) + len(tokens) - 1
        for (rid, _), tokens in driver.collected.items()
    )


def longest_gap(driver: Driver, request_id: str) -> int:
    rows = [e.step for e in driver.log if e.kind is EventKind.ROW and e.request_id == request_id]
    return max(b - a for a, b in itertools.pairwise(rows))


@pytest.mark.parametrize("lag", [False, True])
def test_c06_no_thrash_when_a_fifth_arrives(lag: bool) -> None:
    config = SchedulerConfig(
        num_blocks=64, block_size=16, max_model_len=1024, max_num_batched_tokens=64
    )
    driver = Driver(config, lag=lag)
    for i in range(4):
        driver.add(submission(f"r{i}", [i] * 180, seed=i, max_tokens=200))
    for _ in range(60):
        driver.step()
    driver.add(submission("fifth", [9] * 300, max_tokens=100))
    driver.run()
    driver.verify()
    assert driver.scheduler.counters.computed_tokens <= 1.3 * ideal_tokens(driver)
    assert max(final.preemptions for final in driver.finals.values()) <= 4


def test_c06_lengths_that_nobody_foresaw() -> None:
    """A history of short answers, then many long ones: optimism is punished, thrash bounded."""
    config = SchedulerConfig(
        num_blocks=64, block_size=16, max_model_len=1024, max_num_batched_tokens=256
    )
    driver = Driver(config)
    for i in range(30):
        driver.add(submission(f"short{i}", [i] * 20, seed=i, max_tokens=4))
    driver.run()
    for i in range(30):
        driver.add(submission(f"long{i}", [i] * 20, seed=i, max_tokens=300))
    before = driver.scheduler.counters.computed_tokens
    driver.run()
    driver.verify()
    short = 30 * (20 + 3)
    assert driver.scheduler.counters.preemptions > 0
    ideal = ideal_tokens(driver) - short
    assert driver.scheduler.counters.computed_tokens - before <= 1.3 * ideal
    assert max(final.preemptions for final in driver.finals.values()) <= 4


@pytest.mark.parametrize("lag", [False, True])
def test_c06_chats_decode_in_every_step_of_a_long_prefill(lag: bool) -> None:
    config = SchedulerConfig(
        num_blocks=400, block_size=16, max_model_len=4096, max_num_batched_tokens=64
    )
    driver = Driver(config, lag=lag)
    for i in range(20):
        driver.add(submission(f"chat{i}", [i] * 10, seed=i, max_tokens=60))
    for _ in range(6):
        driver.step()
    driver.add(submission("long", [1] * 3000, max_tokens=4))
    driver.run()
    driver.verify()
    assert all(longest_gap(driver, f"chat{i}") == 1 for i in range(20))
    assert driver.scheduler.counters.preemptions == 0


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("careless", [False, True])
def test_c07_priorities_under_pressure(careless: bool, lag: bool) -> None:
    driver = Driver(small_pool(policy="priority", num_blocks=24, max_num_seqs=16), lag=lag)
    if careless:
        driver.scheduler.books.lengths = Optimist()
    for i in range(10):
        driver.add(submission(f"mid{i}", [i] * 3, seed=i, max_tokens=20, n=1 + i % 2, arrival=i))
    for _ in range(4):
        driver.step()
    for i in range(3):
        driver.add(submission(f"high{i}", [i] * 30, max_tokens=20, priority=-10, arrival=20 + i))
    for i in range(5):
        driver.add(submission(f"low{i}", [i] * 5, max_tokens=20, priority=5, arrival=30 + i))
    driver.run()
    driver.verify()
    if careless:
        assert driver.scheduler.counters.preemptions > 0
    # The three of them do not fit together, so that they may be each other's victims.
    assert driver.finals["high0", 0].preemptions == 0


def test_c07_the_victim_is_the_latest_of_the_lowest_priority() -> None:
    driver = Driver(small_pool(policy="priority", num_blocks=8, max_model_len=30))
    driver.scheduler.books.lengths = Optimist()
    for name, priority, arrival in (("a", 1, 0), ("b", 1, 1), ("c", 0, 2), ("d", -1, 3)):
        driver.add(
            submission(name, [arrival] * 4, max_tokens=12, priority=priority, arrival=arrival)
        )
    driver.run()
    driver.verify()
    victims = [e.request_id for e in driver.log if e.kind is EventKind.PREEMPTED]
    assert victims[:2] == ["b", "a"]
    assert "d" not in victims


def test_priority_is_ignored_under_fcfs() -> None:
    driver = Driver(small_pool(max_num_seqs=1))
    driver.add(submission("first", [1], max_tokens=2, priority=5))
    driver.add(submission("second", [2], max_tokens=2, priority=-5))
    driver.run()
    admitted = [e.request_id for e in driver.log if e.kind is EventKind.ADMITTED]
    assert admitted == ["first", "second"]


@pytest.mark.parametrize("lag", [False, True])
def test_b03_preempted_requests_lose_and_double_nothing(lag: bool) -> None:
    driver = Driver(small_pool(num_blocks=20), lag=lag)
    driver.scheduler.books.lengths = Optimist()
    for i in range(6):
        driver.add(
            submission(f"r{i}", [i] * 11, seed=i, max_tokens=40, logprobs=0, prompt_logprobs=0)
        )
    driver.run()
    driver.verify()
    assert driver.scheduler.counters.preemptions > 0
    generated = sum(len(tokens) for tokens in driver.collected.values())
    assert driver.scheduler.counters.generated_tokens == generated == 240


def test_b03_prompt_logprobs_survive_a_preemption_within_the_prompt() -> None:
    driver = Driver(small_pool(max_num_batched_tokens=5))
    driver.add(submission("a", list(range(18)), max_tokens=3, prompt_logprobs=0))
    driver.step()
    driver.step()
    books = driver.scheduler.books
    books.preempt(books.running[0], Cause.BLOCKS)
    driver.run()
    driver.verify()
    assert driver.finals["a", 0].preemptions == 1


def test_a_row_that_fails_ends_its_request_alone() -> None:
    driver = Driver(
        small_pool(num_blocks=64),
        fail=lambda plan, row: "non-finite logits" if (plan.step, row.rid) == (3, 1) else None,
    )
    driver.add(submission("good", [1, 2, 3], max_tokens=8))
    driver.add(submission("bad", [4, 5, 6], n=3, max_tokens=8))
    driver.run()
    driver.verify()
    assert driver.finals["good", 0].finish_reason == FinishReason.LENGTH
    for choice in range(3):
        final = driver.finals["bad", choice]
        assert (final.finish_reason, final.error) == (FinishReason.ERROR, "non-finite logits")
        assert final.error_code == "row_failed"


def test_a_stall_becomes_a_typed_failure() -> None:
    """Nothing in the scheduler stalls; a pool whose blocks somebody stole stands in for it."""
    driver = Driver(small_pool())
    driver.add(submission("a", [1, 2, 3], n=2))
    scheduler = driver.scheduler
    for _ in range(16):
        scheduler.books.tables.pools[0].allocate()
    assert not scheduler.schedule(1.0).rows
    outputs = scheduler.resolve_stall(1.0)
    assert [(o.finish_reason, o.error_code) for o in outputs] == [("error", "stalled")] * 2
    assert outputs[0].error is not None
    assert "16 of 16 blocks held" in outputs[0].error
    assert not scheduler.has_work()
