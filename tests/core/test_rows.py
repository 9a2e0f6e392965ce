"""Rows and budgets: chunks, decodes, what is told to the executor, and how sequences stop."""

from __future__ import annotations

import pytest

from octavo.core.plan import Want
from octavo.core.request import FinishReason
from support.core_driver import Driver, small_pool, submission


def fixed(*script: int):
    """A token source that walks a script (by outputs after a prompt of 4), then repeats 1."""
    return lambda seed, choice, position: (*script, *[1] * 100)[position - 4]


def test_prefill_chunk_and_decode_are_the_same_thing() -> None:
    driver = Driver(small_pool(max_num_batched_tokens=6))
    driver.add(submission("a", list(range(15)), max_tokens=3))
    driver.run()
    driver.verify()
    rows = [(row.start, len(row.tokens)) for plan in driver.plans for row in plan.rows]
    assert rows == [(0, 6), (6, 6), (12, 3), (15, 1), (16, 1)]
    wants = [plan.rows[0].want for plan in driver.plans]
    assert wants == [Want.NONE, Want.NONE, Want.SAMPLE, Want.SAMPLE, Want.SAMPLE]
    assert [plan.rows[0].logits_from for plan in driver.plans] == [6, 6, 2, 0, 0]


def test_a_rid_is_introduced_once_and_ended_in_the_next_plan_with_rows() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1, 2, 3], max_tokens=1))
    driver.step()
    assert not driver.scheduler.schedule(9.0).rows
    driver.add(submission("b", [1, 2, 3], max_tokens=2))
    driver.run()
    (a, b) = [new.rid for plan in driver.plans for new in plan.admitted]
    assert [plan.ended for plan in driver.plans] == [[], [a], []]
    assert driver.scheduler.books.ended == [b]


def test_the_budget_holds_and_decodes_come_first() -> None:
    driver = Driver(small_pool(num_blocks=64, max_num_batched_tokens=8))
    driver.add(submission("short", [1, 2, 3], max_tokens=30, arrival=1.0))
    driver.step()
    driver.add(submission("long", list(range(40)), max_tokens=2, arrival=0.0))
    for _ in range(5):
        driver.step()
        plan = driver.plans[-1]
        assert sorted(len(row.tokens) for row in plan.rows) == [1, 7]
    driver.run()
    driver.verify()


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_budget_smaller_than_a_block(budget: int) -> None:
    driver = Driver(small_pool(max_num_batched_tokens=budget))
    for i in range(5):
        driver.add(submission(f"r{i}", [i] * 9, seed=i, max_tokens=5))
    driver.run()
    driver.verify()
    assert max(sum(len(r.tokens) for r in p.rows) for p in driver.plans) == budget


def test_eos_stops_and_is_named() -> None:
    driver = Driver(small_pool(eos_token_ids=(7, 9)), source=fixed(3, 9, 5))
    driver.add(submission("a", [1, 2, 3, 4], max_tokens=10))
    driver.run()
    final = driver.finals["a", 0]
    assert driver.collected["a", 0] == [3, 9]
    assert (final.finish_reason, final.stop_reason) == (FinishReason.STOP, 9)


def test_ignore_eos_obeys_stop_token_ids() -> None:
    driver = Driver(small_pool(eos_token_ids=(7,)), source=fixed(7, 7, 5, 6))
    driver.add(submission("a", [1, 2, 3, 4], ignore_eos=True, stop_token_ids=(5,)))
    driver.run()
    assert driver.collected["a", 0] == [7, 7, 5]
    assert driver.finals["a", 0].stop_reason == 5


def test_min_tokens_holds_back_every_stop() -> None:
    driver = Driver(small_pool(eos_token_ids=(7,)), source=fixed(7, 5, 7, 7))
    driver.add(submission("a", [1, 2, 3, 4], min_tokens=3, stop_token_ids=(5,)))
    driver.run()
    assert driver.collected["a", 0] == [7, 5, 7]


@pytest.mark.parametrize(("max_tokens", "outputs"), [(None, 24), (5, 5), (100, 24)])
def test_length_ends_at_max_tokens_or_the_context(max_tokens: int | None, outputs: int) -> None:
    driver = Driver(small_pool(max_model_len=28))
    driver.add(submission("a", [1, 2, 3, 4], max_tokens=max_tokens))
    driver.run()
    final = driver.finals["a", 0]
    assert len(driver.collected["a", 0]) == outputs
    assert (final.finish_reason, final.stop_reason) == (FinishReason.LENGTH, None)


def test_cumulative_logprob_and_logprobs_where_asked() -> None:
    driver = Driver(small_pool())
    driver.add(submission("asked", [1, 2, 3], logprobs=0, max_tokens=4))
    driver.add(submission("best", [1, 2, 3], n=1, best_of=2, max_tokens=4))
    driver.run()
    driver.verify()
    asked = driver.told["asked"]
    assert all(o.logprobs is not None and len(o.logprobs) == len(o.tokens) for o in asked)
    assert all(o.logprobs is None for o in driver.told["best"])
    assert driver.finals["best", 1].cumulative_logprob < 0


def test_queue_time_and_cached_tokens_come_once() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1, 2, 3], max_tokens=3, arrival=-4.0))
    driver.run()
    first, *others = driver.told["a"]
    assert (first.queue_time, first.cached_tokens) == (5.0, 0)
    assert all(o.queue_time is None and o.cached_tokens is None for o in others)


def test_more_rows_than_max_num_seqs_wait() -> None:
    driver = Driver(small_pool(max_num_seqs=2, num_blocks=64))
    for i in range(5):
        driver.add(submission(f"r{i}", [i, 1], seed=i, max_tokens=3))
    driver.step()
    stats = driver.scheduler.stats()
    assert (stats.running, stats.waiting, stats.waiting_tokens) == (2, 3, 6)
    driver.run()
    driver.verify()


def test_stats_count_each_physical_slot_once() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", list(range(6)), n=2, max_tokens=4))
    driver.step()
    driver.step()
    stats = driver.scheduler.stats()
    # Six prompt tokens in two blocks; the leader has copied the second to write its own token.
    assert (stats.blocks_held, stats.logical_blocks, stats.copies_total) == (3, 4, 1)
    assert stats.slots_filled == 4 + 2 + 3
    assert stats.blocks_total == stats.blocks_held + stats.blocks_cached + stats.blocks_free
