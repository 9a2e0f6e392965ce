"""The figures of the pool after scripted scenarios, against counts worked out by hand.

Blocks have 4 tokens; a sequence of P prompt tokens and T outputs has P + T - 1 slots filled: its
last token is never computed.
"""

from __future__ import annotations

from octavo.core.blocks import GroupSpec
from octavo.core.request import FinishReason
from support.core_driver import Driver, small_pool, submission


def test_filled_and_used_shares_are_two_series() -> None:
    driver = Driver(small_pool(num_blocks=16))
    driver.add(submission("a", [1, 2, 3, 4, 5], max_tokens=9, ignore_eos=True))
    driver.step()  # 5 tokens in 2 blocks
    stats = driver.scheduler.stats()
    assert (stats.blocks_held, stats.slots_filled, stats.logical_blocks) == (2, 5, 2)
    for _ in range(4):  # 4 more: 9 tokens in 3 blocks
        driver.step()
    stats = driver.scheduler.stats()
    assert (stats.blocks_held, stats.slots_filled, stats.blocks_total) == (3, 9, 16)
    driver.run()
    stats = driver.scheduler.stats()
    # 13 slots were filled: 3 full blocks stay for the prefix cache, and a fourth is free.
    assert (stats.blocks_held, stats.blocks_cached, stats.slots_filled) == (0, 3, 0)
    assert stats.blocks_reclaimed_total == {"finished": 4}


def test_sharing_copies_and_the_share_ratio() -> None:
    """Four choices fork after a prompt of 6: its 2 blocks are in 4 tables."""
    driver = Driver(small_pool(num_blocks=32))
    driver.add(submission("a", list(range(1, 7)), max_tokens=2, ignore_eos=True, n=4))
    driver.step()
    stats = driver.scheduler.stats()
    assert (stats.logical_blocks, stats.blocks_held) == (8, 2)
    driver.step()  # the leader's 7th token goes to the shared second block: it takes a copy
    stats = driver.scheduler.stats()
    assert stats.copies_total == 1
    driver.run()
    stats = driver.scheduler.stats()
    # Of four that share a block three copy it, and the last one has it for itself.
    assert stats.copies_total == 3
    # The shared full block, and each one's own second.
    assert stats.blocks_reclaimed_total == {"finished": 5}


def test_prefix_hits() -> None:
    """Prompts of 9: the second finds two full blocks, 8 tokens; a third shares only the first."""
    driver = Driver(small_pool())
    prompt = list(range(1, 10))
    for name, tokens in (("a", prompt), ("b", prompt), ("c", [*prompt[:4], 30, 31, 32, 33, 34])):
        driver.add(submission(name, tokens, max_tokens=1))
        driver.run()
    stats = driver.scheduler.stats()
    assert (stats.prompt_tokens_total, stats.cached_tokens_total) == (27, 8 + 4)
    assert stats.prefix_hit_rate == 12 / 27
    for number in range(1000):  # the recent rate forgets; the totals do not
        driver.add(submission(f"n{number}", [49, number % 50], max_tokens=1))
        driver.run()
    assert driver.scheduler.stats().prefix_hit_rate == 0.0
    assert driver.scheduler.stats().cached_tokens_total == 12


def test_blocks_reclaimed_by_cause() -> None:
    driver = Driver(
        small_pool(num_blocks=32, max_num_batched_tokens=64),
        fail=lambda plan, row: "not finite" if row.rid == 2 and plan.step == 2 else None,
    )
    driver.add(submission("ends", [1] * 9, max_tokens=2, ignore_eos=True))  # 10 slots: 3 blocks
    driver.add(submission("leaves", [2] * 13, max_tokens=30, ignore_eos=True))
    driver.add(submission("fails", [3] * 5, max_tokens=30, ignore_eos=True))
    driver.add(submission("late", [4] * 17, max_tokens=30, ignore_eos=True, timeout=4.0))
    driver.step()
    driver.step()
    assert driver.finals["ends", 0].finish_reason is FinishReason.LENGTH
    driver.abort("leaves")  # 14 slots: 4 blocks
    driver.step()  # "fails" has its row of step 2: 5 + 2 slots, 2 blocks
    assert driver.finals["fails", 0].finish_reason is FinishReason.ERROR
    driver.run()  # "late" has 17 + 2 slots when the step of second 4 is planned: 5 blocks
    stats = driver.scheduler.stats()
    assert stats.blocks_reclaimed_total == {"finished": 3, "aborted": 4, "failed": 2, "expired": 5}
    assert sum(stats.blocks_reclaimed_total.values()) == 14
    assert stats.finished_total == {"length": 1, "abort": 1, "error": 2}


def test_preemptions_by_cause() -> None:
    """Two that are expected to be short grow beyond the pool: the later one gives way."""
    driver = Driver(small_pool(num_blocks=8, max_num_batched_tokens=32))
    for _ in range(8):  # outputs were short lately
        driver.scheduler.books.lengths.record(2)
    driver.add(submission("a", [1] * 12, max_tokens=12, ignore_eos=True))
    driver.add(submission("b", [2] * 12, max_tokens=12, ignore_eos=True))
    while not driver.scheduler.counters.preemptions:
        driver.step()
    # Both had 4 blocks of the 8; "a" needs a fifth for its 17th token.
    stats = driver.scheduler.stats()
    assert stats.preemptions_by_total == {"blocks/realtime": 1}
    assert stats.blocks_reclaimed_total == {"preempted": 4}
    driver.run()
    driver.verify()
    stats = driver.scheduler.stats()
    assert sum(stats.preemptions_by_total.values()) == stats.preemptions_total
    # Each ends with 12 + 11 slots: 6 blocks.
    assert stats.blocks_reclaimed_total["finished"] == 12


def test_blocks_that_slide_out_of_a_window() -> None:
    """A window of 4 tokens: 12 + 19 slots are 8 blocks, of which the last token sees two."""
    window = GroupSpec(16, 4, 4)
    driver = Driver(small_pool(groups=(window,), max_model_len=64, enable_prefix_caching=False))
    driver.add(submission("a", [1] * 12, max_tokens=20, ignore_eos=True))
    driver.run()
    reclaimed = driver.scheduler.stats().blocks_reclaimed_total
    assert sum(reclaimed.values()) == 8
    assert reclaimed["finished"] <= 2 and reclaimed["window"] >= 6


def test_queue_times_come_with_the_first_output() -> None:
    driver = Driver(small_pool(max_num_seqs=1))
    for number in range(3):
        driver.add(submission(f"r{number}", [1, 2], max_tokens=2, ignore_eos=True))
    driver.run()
    times = [driver.told[f"r{number}"][0].queue_time for number in range(3)]
    assert times == [1.0, 3.0, 5.0], "two steps each, of a second"
