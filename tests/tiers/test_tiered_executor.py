"""Bytes between cache and tier: in the right order, and no failure reaches a row."""

from __future__ import annotations

import pytest

from octavo.core.plan import FinishedLoad, Load, StepPlan, StepResult, Store
from octavo.tiers.executor import TieredExecutor
from octavo.tiers.host import HostTier


class Cache:
    """A cache of bytes whose step overwrites block 0."""

    def __init__(self) -> None:
        self.blocks = {(0, 0): b"old", (0, 1): b"..."}
        self.fails = False

    def submit(self, plan: StepPlan) -> StepPlan:
        self.blocks[0, 0] = b"new"
        if self.fails:
            raise RuntimeError("the step fails")
        return plan

    def collect(self, handle: StepPlan) -> StepResult:
        return StepResult([])

    def read_block(self, group: int, block: int) -> bytes:
        if (group, block) not in self.blocks:
            raise ValueError("no such block")
        return self.blocks[group, block]

    def write_block(self, group: int, block: int, data: bytes) -> None:
        if (group, block) not in self.blocks:
            raise ValueError("no such block")
        self.blocks[group, block] = data


def step(executor: TieredExecutor, *transfers: Load | Store) -> list[FinishedLoad]:
    plan = StepPlan(0, transfers=list(transfers))
    return executor.collect(executor.submit(plan)).finished_transfers


def test_a_block_is_copied_out_before_the_step_writes_and_comes_back() -> None:
    cache = Cache()
    executor = TieredExecutor(cache, HostTier(100))
    step(executor, Store(0, 0, b"a"))
    assert cache.blocks[0, 0] == b"new"
    assert step(executor, Load(7, 0, 1, b"a")) == [FinishedLoad(7, True)]
    assert cache.blocks[0, 1] == b"old"
    assert step(executor, Load(8, 0, 1, b"b")) == [FinishedLoad(8, False)]


def test_a_transfer_that_fails_is_counted_and_fails_nothing_else() -> None:
    executor = TieredExecutor(Cache(), HostTier(100))
    step(executor, Store(0, 9, b"a"), Store(0, 0, b"b"))
    assert step(executor, Load(1, 0, 9, b"b")) == [FinishedLoad(1, False)]
    assert executor.errors == 2


def test_a_load_in_a_step_that_fails_is_told_of_with_the_next() -> None:
    cache = Cache()
    executor = TieredExecutor(cache, HostTier(100))
    step(executor, Store(0, 0, b"a"))
    cache.fails = True
    with pytest.raises(RuntimeError):
        step(executor, Load(1, 0, 1, b"a"))
    cache.fails = False
    assert step(executor) == [FinishedLoad(1, True)]


def test_the_host_tier_is_bounded_and_drops_the_least_recently_used() -> None:
    tier = HostTier(10)
    for name in (b"a", b"b", b"c"):
        tier.store(0, name, b"12345")
        if name != b"a":
            continue
        tier.load(0, 0, b"a")
    assert tier.stats.bytes == 10
    assert [tier.contains(0, name) for name in (b"a", b"b", b"c")] == [False, True, True]
    tier.load(1, 0, b"b")
    tier.store(0, b"d", b"12345")
    assert [tier.contains(0, name) for name in (b"b", b"c", b"d")] == [True, False, True]
    tier.store(0, b"e", b"12345678901")
    assert not tier.contains(0, b"e"), "larger than all of it"
    assert tier.arrived() == [(0, b"12345"), (1, b"12345")]
    tier.clear()
    assert tier.stats.bytes == 0 and not tier.contains(0, b"d")
    with pytest.raises(ValueError, match="at least 1"):
        HostTier(0)
