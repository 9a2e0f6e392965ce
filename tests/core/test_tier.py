"""Blocks from a tier: hits, late arrivals, failures, aborts and preemptions meanwhile, no leaks.

The shadow tier keeps shadow contents, so that a block loaded too late, wrongly or into the wrong
place is found by the row that reads it.
"""

from __future__ import annotations

import pytest

from octavo.core.blocks import GroupSpec
from octavo.core.events import EventKind
from octavo.core.plan import Load, Store
from support.core_driver import Driver, small_pool, submission
from support.core_fuzz import Fuzz, Optimist
from support.shadow_tier import ShadowTier

PROMPT = [1, 2, 3, 4] * 5


def sure(**changes: float) -> ShadowTier:
    return ShadowTier(0, **({"late": 0.0, "fails": 0.0, "loses": 0.0} | changes))


def settle(driver: Driver) -> None:
    """Until nothing is left to be stored."""
    driver.run()
    for _ in range(200):
        if not driver.scheduler.storing:
            return
        driver.step()
    raise AssertionError("blocks are still to be stored")


def filled(driver: Driver) -> None:
    """The prompt's blocks are in the tier, and the pool has forgotten them."""
    driver.add(submission("first", PROMPT, max_tokens=2))
    settle(driver)
    for pool in driver.scheduler.books.tables.pools:
        pool.reset_cache()


def cached(driver: Driver, request_id: str) -> int | None:
    return driver.told[request_id][0].cached_tokens


@pytest.mark.parametrize("lag", [False, True])
def test_published_blocks_are_stored_and_hit_after_they_are_gone(lag: bool) -> None:
    tier = sure()
    driver = Driver(small_pool(), lag=lag, tier=tier)
    filled(driver)
    assert tier.stored == len(tier.blocks) == 5
    driver.add(submission("again", PROMPT, max_tokens=4))
    settle(driver)
    driver.verify()
    assert cached(driver, "again") == len(PROMPT) - 1
    stats = driver.scheduler.stats()
    assert (stats.tier_hits_total, stats.tier_loaded_total) == (5, 5)
    assert tier.stored == 5, "what the tier has is not stored again"


def test_without_a_tier_plans_have_no_transfers() -> None:
    driver = Driver(small_pool())
    driver.add(submission("first", PROMPT, max_tokens=2))
    driver.run()
    assert not any(plan.transfers or plan.waits for plan in driver.plans)
    assert not driver.scheduler.storing


def test_an_idle_engine_stores_with_plans_that_have_no_rows() -> None:
    driver = Driver(small_pool(), tier=sure())
    filled(driver)
    stores = [one for plan in driver.plans for one in plan.transfers]
    assert len(stores) == 5 and all(isinstance(one, Store) for one in stores)


def test_who_comes_while_blocks_are_under_way_waits_for_the_same_ones() -> None:
    driver = Driver(small_pool(), tier=sure(late=0.9))
    filled(driver)
    driver.add(submission("one", PROMPT, max_tokens=4))
    driver.step()
    driver.add(submission("two", [*PROMPT, 9], max_tokens=4))
    driver.step()
    assert driver.scheduler.waiting == 2
    driver.run()
    driver.verify()
    loads = [one for plan in driver.plans for one in plan.transfers if isinstance(one, Load)]
    assert len(loads) == len({one.content for one in loads}) == 5
    assert cached(driver, "two") == len(PROMPT)


def test_others_go_on_while_blocks_are_under_way() -> None:
    driver = Driver(small_pool(num_blocks=32), tier=sure(late=0.95))
    filled(driver)
    driver.add(submission("loads", PROMPT, max_tokens=4))
    driver.add(submission("computes", [9] * 6, max_tokens=3))
    for _ in range(4):
        driver.step()
    assert ("computes", 0) in driver.finals and ("loads", 0) not in driver.finals
    driver.run()
    driver.verify()


def test_a_block_that_does_not_arrive_is_computed() -> None:
    tier = sure(fails=1.0)
    driver = Driver(small_pool(), tier=tier)
    filled(driver)
    driver.add(submission("again", PROMPT, max_tokens=4))
    driver.run()
    driver.verify()
    assert tier.failed == 5
    assert cached(driver, "again") == 0


def test_a_block_missing_in_the_middle_ends_the_hit_there() -> None:
    tier = sure()
    driver = Driver(small_pool(), tier=tier)
    filled(driver)
    del tier.blocks[list(tier.blocks)[2]]
    driver.add(submission("again", PROMPT, max_tokens=4))
    driver.run()
    driver.verify()
    assert cached(driver, "again") == 8
    assert driver.scheduler.stats().tier_hits_total == 2


def test_an_abort_while_blocks_are_under_way_leaves_nothing_behind() -> None:
    driver = Driver(small_pool(), tier=sure(late=0.99))
    filled(driver)
    driver.add(submission("again", PROMPT, max_tokens=4))
    driver.step()
    assert driver.scheduler.stats().blocks_held == 5
    driver.abort("again")
    assert driver.scheduler.has_work(), "the blocks are still under way"
    driver.run()
    assert driver.scheduler.stats().blocks_cached == 5, "they arrived all the same"


def test_a_reset_of_the_cache_forgets_the_tier_and_what_is_under_way() -> None:
    tier = sure(late=0.99)
    driver = Driver(small_pool(), tier=tier)
    filled(driver)
    driver.add(submission("again", PROMPT, max_tokens=1))
    driver.step()
    driver.scheduler.reset_prefix_cache()
    assert not tier.blocks
    driver.run()
    driver.verify()
    assert cached(driver, "again") == 0


def test_a_preempted_sequence_comes_back_from_the_tier() -> None:
    tier = sure()
    driver = Driver(small_pool(num_blocks=12), tier=tier)
    driver.scheduler.books.lengths = Optimist()
    for name in "abc":
        driver.add(submission(name, [ord(name)] * 12, max_tokens=20, ignore_eos=True))
    driver.run()
    driver.verify()
    assert driver.scheduler.counters.preemptions > 0
    assert tier.loaded > 0


def test_what_a_window_does_not_see_is_not_loaded() -> None:
    groups = (GroupSpec(16, 4), GroupSpec(16, 4, 6))
    driver = Driver(small_pool(groups=groups), tier=sure())
    filled(driver)
    driver.add(submission("again", [*PROMPT, 9], max_tokens=4))
    driver.run()
    driver.verify()
    loads = [one for plan in driver.plans for one in plan.transfers if isinstance(one, Load)]
    assert [sum(one.group == group for one in loads) for group in (0, 1)] == [5, 2]
    assert cached(driver, "again") == len(PROMPT)


def test_a_tier_that_is_off_takes_nothing_and_keeps_nobody_busy() -> None:
    tier = sure()
    driver = Driver(small_pool(), tier=tier)
    driver.add(submission("first", PROMPT, max_tokens=2))
    driver.step()
    tier.active = False
    settle(driver)
    assert not driver.scheduler.storing
    driver.add(submission("again", PROMPT, max_tokens=2))
    driver.run()
    driver.verify()


def test_prompt_logprobs_are_computed_and_not_loaded() -> None:
    driver = Driver(small_pool(), tier=sure())
    filled(driver)
    driver.add(submission("scored", PROMPT, max_tokens=2, prompt_logprobs=0))
    driver.run()
    driver.verify()
    assert driver.scheduler.stats().tier_hits_total == 0


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("share", range(2))
def test_fuzz_tier(share: int, windows: bool) -> None:
    planned = loaded = failed = scenario = 0
    seen: dict[EventKind, int] = {}
    while planned < 8_000:
        seed = share + 2 * scenario
        tier = ShadowTier(seed, late=(0.0, 0.5, 0.95)[scenario % 3])
        fuzz = Fuzz(seed, windows=windows, tier=tier)
        planned += fuzz.run(400)
        scenario += 1
        loaded, failed = loaded + tier.loaded, failed + tier.failed
        for event in fuzz.driver.log:
            seen[event.kind] = seen.get(event.kind, 0) + 1
    assert loaded >= 200 and failed >= 20, (loaded, failed)
    assert seen[EventKind.PREEMPTED] >= 20 and seen[EventKind.LOADING] >= 60, seen


def test_the_same_seed_gives_the_same_log() -> None:
    logs = []
    for _ in range(2):
        fuzz = Fuzz(5, tier=ShadowTier(5))
        fuzz.run(200)
        logs.append(fuzz.driver.log)
    assert logs[0] == logs[1]
