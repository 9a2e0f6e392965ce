"""What is refused, with which numbers; what is finished at once; queue bounds; A10 and A12."""

from __future__ import annotations

import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.request import FinishReason, Refused
from support.core_driver import Driver, assert_no_leak, small_pool, submission


def refuse(driver: Driver, *args: object, **kwargs: object) -> Refused:
    with pytest.raises(Refused) as refusal:
        driver.add(submission(*args, **kwargs))  # type: ignore[arg-type]
    return refusal.value


def test_a12_an_empty_prompt_is_refused_and_the_next_request_works() -> None:
    driver = Driver(small_pool())
    assert refuse(driver, "a", []).code == "empty_prompt"
    driver.add(submission("a", [1], max_tokens=2))
    driver.run()
    driver.verify()


@pytest.mark.parametrize("length", [64, 65, 500])
def test_a23_too_long_for_the_context(length: int) -> None:
    driver = Driver(small_pool(num_blocks=64))
    refusal = refuse(driver, "a", [1] * length, max_tokens=5)
    assert (refusal.code, refusal.param) == ("context_length_exceeded", "prompt")
    for number in (str(length), "5 more", "64 in all"):
        assert number in str(refusal)


def test_a23_the_longest_prompt_gives_one_token() -> None:
    driver = Driver(small_pool(num_blocks=64))
    driver.add(submission("a", [1] * 63))
    driver.run()
    assert len(driver.collected["a", 0]) == 1


def test_a_running_id_is_refused_and_may_come_again_later() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1], max_tokens=1))
    assert refuse(driver, "a", [2]).code == "duplicate_request_id"
    driver.run()
    driver.scheduler.add(submission("a", [1], max_tokens=1))


def test_queue_bound_in_requests() -> None:
    driver = Driver(small_pool(max_waiting_requests=2, max_num_seqs=1))
    for name in "abc":  # the first will begin with the next step: it does not wait
        driver.add(submission(name, [1, 2], max_tokens=4))
    refusal = refuse(driver, "d", [1, 2])
    assert (refusal.code, refusal.retry_after) == ("queue_full", 1.0)
    assert "3 requests with 6 prompt tokens" in str(refusal)
    driver.step()
    assert refuse(driver, "d", [1, 2]).code == "queue_full"
    driver.abort("c")
    driver.add(submission("d", [1, 2], max_tokens=4))
    assert driver.scheduler.stats().refused_total == {"queue_full": 2}
    driver.run()
    driver.verify()


def test_queue_bound_in_tokens_lets_any_request_into_an_empty_queue() -> None:
    driver = Driver(small_pool(max_waiting_tokens=10))
    driver.add(submission("a", [1] * 20, max_tokens=1))
    assert refuse(driver, "b", [1]).code == "queue_full"
    driver.step()
    driver.add(submission("b", [1], max_tokens=1))


def test_retry_after_follows_the_throughput() -> None:
    """100 tokens a second go through; about 800 more must go before there is room."""
    config = SchedulerConfig(
        num_blocks=640,
        block_size=16,
        max_model_len=2000,
        max_num_seqs=1,
        max_num_batched_tokens=100,
        max_waiting_tokens=1000,
    )
    driver = Driver(config)
    driver.add(submission("a", [1] * 1900, max_tokens=2))
    for _ in range(10):
        driver.step()
    driver.add(submission("b", [2] * 900))
    refusal = refuse(driver, "c", [3] * 900)
    assert refusal.retry_after == 8.0


def test_an_aborted_waiting_request_makes_room() -> None:
    driver = Driver(small_pool(max_waiting_requests=1))
    driver.add(submission("a", [1] * 5))
    driver.abort("a")
    driver.add(submission("b", [1] * 5, max_tokens=1))
    driver.run()


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a10_max_tokens_0_with_prompt_logprobs_computes_the_prompt(n: int, lag: bool) -> None:
    driver = Driver(small_pool(max_num_batched_tokens=5), lag=lag)
    driver.add(submission("a", list(range(12)), max_tokens=0, prompt_logprobs=1, n=n))
    driver.run()
    driver.verify()
    assert driver.scheduler.counters.computed_tokens == 12
    (first, *_) = driver.told["a"]
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == 11
    assert [o.finish_reason for o in driver.told["a"]] == [FinishReason.LENGTH] * n


def test_a10_max_tokens_1_gives_prompt_logprobs_with_the_token() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", list(range(12)), max_tokens=1, prompt_logprobs=1, logprobs=1))
    driver.run()
    driver.verify()
    (only,) = driver.told["a"]
    assert only.prompt_logprobs is not None
    assert only.logprobs is not None
    assert (len(only.prompt_logprobs), len(only.logprobs)) == (11, 1)


def test_a10_a_prompt_of_one_token_has_no_prompt_logprobs() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [5], max_tokens=0, prompt_logprobs=1))
    driver.run()
    assert driver.told["a"][0].prompt_logprobs == []


def test_a10_max_tokens_0_without_logprobs_is_finished_at_once() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1, 2], max_tokens=0, n=2))
    assert driver.scheduler.has_work()
    driver.step()
    assert driver.steps == 0
    assert [o.finish_reason for o in driver.told["a"]] == ["length", "length"]
    assert_no_leak(driver.scheduler)


@pytest.mark.parametrize("field", ["num_blocks", "block_size", "max_model_len", "max_num_seqs"])
def test_a_limit_of_zero_is_an_error(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0"):
        small_pool(**{field: 0})


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match=r"'lottery'.*fcfs, priority"):
        Driver(small_pool(policy="lottery"))
