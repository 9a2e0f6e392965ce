"""Groups with a sliding window: what is held, given back, found again and admitted (cases B01, C05,
C10 with windows)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.blocks import UNBOUNDED, BlockError, GroupSpec, span_blocks
from octavo.core.request import FinishReason, Refused
from octavo.core.tables import Table, Tables
from support.core_driver import Driver, small_pool, submission

SIZE = 4


def tables(*windows: int, blocks: int = 32) -> Tables:
    return Tables([GroupSpec(blocks, SIZE, window) for window in windows])


def computed(t: Tables, names: str) -> Table:
    """A table of full, published blocks of those names."""
    table = t.empty()
    t.grow(table, 0, SIZE * len(names))
    for index, name in enumerate(names):
        t.publish(table, index, name.encode())
    return table


def names(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


@given(st.integers(1, 40), st.integers(1, 9))
def test_the_span_is_the_most_blocks_that_a_token_sees(window: int, size: int) -> None:
    spec = GroupSpec(1, size, window)
    seen = [
        position // size - spec.first_seen(position) + 1
        for position in range(3 * window + 3 * size)
    ]
    assert max(seen) == spec.span == span_blocks(window, size)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_a_pool_is_too_small_at_its_end_or_never(window: int, size: int, blocks: int) -> None:
    spec = GroupSpec(blocks, size, window)
    too_small = [
        position
        for position in range(200)
        if position // size - spec.first_seen(position) + 1 > blocks
    ]
    assert spec.longest == (too_small[0] if too_small else UNBOUNDED)


def test_a_window_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="window is -1"):
        GroupSpec(1, 1, -1)


def test_blocks_before_the_window_are_given_back_and_stay_findable() -> None:
    t = tables(0, 6)
    table = computed(t, "abcd")
    t.slide(table, 16)
    assert [len(one.held()) for one in table] == [4, 2]
    assert list(table[1])[:2] == [0, 0]
    assert (t.pools[1].held, t.pools[1].cached) == (2, 2)
    t.slide(table, 16)
    assert t.pools[1].held == 2, "given back twice"
    assert t.hits(names("ab"), 2) == 2
    t.release(table)
    assert [pool.held for pool in t.pools] == [0, 0]
    assert all(one.first == 0 and not one for one in table)


def test_a_block_that_was_given_back_is_neither_written_nor_shared() -> None:
    t = tables(4)
    table = computed(t, "abcd")
    t.slide(table, 16)
    with pytest.raises(BlockError, match="given back"):
        t.grow(table, 5, 6)
    with pytest.raises(BlockError, match="given back"):
        t.share(table, 9)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_c10_forks_slide_and_are_freed_in_all_orders(order: tuple[int, ...]) -> None:
    t = tables(0, 6)
    first = t.empty()
    t.grow(first, 0, 10)
    forks = [first, *(t.share(first, 10) for _ in range(3))]
    assert t.pools[1].refs(first[1][2]) == 4
    copies = [len(t.grow(forks[i], 10, 15)) for i in order]
    assert copies == [2, 2, 2, 0]
    for i in order:
        t.slide(forks[i], 15)
    assert t.pools[1].held == 4 * 2, "the blocks before the windows are still held"
    for i in order:
        t.release(forks[i])
        t.pools[1].check()
    assert t.pools[1].held == 0


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=3),
    st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=3, max_size=3),
    st.integers(0, 8),
    st.integers(0, SIZE - 1),
)
def test_hits_are_the_most_after_which_every_window_is_cached(
    windows: list[int], cached: list[list[bool]], limit: int, beyond: int
) -> None:
    t = tables(*windows)
    hashes = names("abcdefgh")
    table = computed(t, "abcdefgh")
    for pool, there, one in zip(t.pools, cached, table, strict=False):
        for block, keep in zip(one, there, strict=True):
            if not keep:
                pool.unpublish(block)
    known = limit * SIZE + beyond

    def serves(hits: int) -> bool:
        start = min(hits * SIZE, known - 1)
        return all(
            pool.lookup(hashes[p // SIZE]) is not None
            for pool, window in zip(t.pools, windows, strict=True)
            for p in range(max(0, start - window + 1) if window else 0, hits * SIZE)
        )

    hits = t.hits(hashes, limit, known)
    assert hits == max(n for n in range(limit + 1) if n == 0 or serves(n))
    if known:
        new = t.empty()
        t.adopt(new, hashes, hits, known)
        assert all(len(one) == hits for one in new)
        before = [one.first for one in new]
        t.slide(new, min(hits * SIZE, known - 1))
        assert [one.first for one in new] == before, "more was taken than is seen"


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 9])
def test_c05_a_full_hit_takes_what_the_last_token_sees(window: int) -> None:
    driver = Driver(small_pool(groups=(GroupSpec(16, 4), GroupSpec(16, 4, window))))
    prompt = list(range(16))
    for name in ("a", "b"):
        driver.add(submission(name, prompt, max_tokens=1))
        driver.run()
    driver.verify()
    row = driver.plans[-1].rows[0]
    assert (row.start, row.write_from, len(row.tokens)) == (15, 16, 1)
    assert driver.finals["b", 0].cached_tokens == 15


def test_a_hit_needs_only_the_window_before_it() -> None:
    # The window's pool keeps the end of the first prompt, not its beginning.
    driver = Driver(small_pool(num_blocks=32, groups=(GroupSpec(32, 4), GroupSpec(9, 4, 6))))
    prompt = list(range(40))
    driver.add(submission("a", prompt, max_tokens=1))
    driver.run()
    first = driver.scheduler.books.tables.pools[1]
    assert first.evictions > 0
    driver.add(submission("b", [*prompt, 1, 2], max_tokens=1))
    driver.run()
    assert driver.finals["b", 0].cached_tokens == 40
    driver.add(submission("c", [*prompt[:8], 1, 2], max_tokens=1))
    driver.run()
    assert driver.finals["c", 0].cached_tokens == 0, "its window is gone, though the rest is there"
    driver.verify()


@settings(max_examples=60, deadline=None)
@given(
    window=st.integers(1, 24),
    size=st.sampled_from([1, 2, 4, 8]),
    budget=st.sampled_from([1, 5, 32]),
    lag=st.booleans(),
    mixed=st.booleans(),
)
def test_use_stays_bounded_however_long_the_sequence(
    window: int, size: int, budget: int, lag: bool, mixed: bool
) -> None:
    length = 10 * window + 60
    spec = GroupSpec(span_blocks(window, size) + 2 * budget, size, window)
    groups = (GroupSpec(2 * length, size), spec) if mixed else (spec,)
    driver = Driver(
        small_pool(
            block_size=size, max_model_len=length, max_num_batched_tokens=budget, groups=groups
        ),
        lag=lag,
    )
    driver.add(submission("a", list(range(40)), ignore_eos=True))
    most = 0
    while driver.scheduler.has_work():
        driver.step()
        most = max(most, driver.scheduler.books.tables.pools[-1].held)
    assert most <= span_blocks(window, size) + (1 + lag) * (-(-budget // size))
    assert len(driver.collected["a", 0]) == length - 40
    driver.verify()


def test_a_windowed_model_serves_what_exceeds_its_pool() -> None:
    driver = Driver(small_pool(max_model_len=400, groups=(GroupSpec(4, 4, 8),)))
    for name in "abc":
        driver.add(submission(name, [ord(name)] * 200, max_tokens=150))
    driver.run()
    driver.verify()
    assert {final.finish_reason for final in driver.finals.values()} == {FinishReason.LENGTH}
    assert all(len(tokens) == 150 for tokens in driver.collected.values())


def test_what_exceeds_the_full_group_is_still_refused() -> None:
    driver = Driver(small_pool(max_model_len=400, groups=(GroupSpec(16, 4), GroupSpec(16, 4, 8))))
    with pytest.raises(Refused, match="needs 204 tokens") as refused:
        driver.add(submission("a", [1] * 200, max_tokens=5))
    assert refused.value.code == "request_too_large"
    too_small = Driver(small_pool(max_model_len=400, groups=(GroupSpec(2, 4, 8),)))
    with pytest.raises(Refused, match="the whole cache has 8"):
        too_small.add(submission("a", [1] * 200, max_tokens=5))


def test_windows_that_fit_together_are_never_preempted() -> None:
    """Admission counts a window, a chunk and a block for each, so that nobody has to give way."""
    span = span_blocks(16, 4)
    driver = Driver(
        small_pool(max_model_len=300, groups=(GroupSpec(3 * span + 4, 4, 16),), max_num_seqs=8)
    )
    for index in range(9):
        driver.add(submission(f"r{index}", [index] * 60, max_tokens=100, ignore_eos=True))
    together = 0
    while driver.scheduler.has_work():
        driver.step()
        together = max(together, len(driver.scheduler.books.running))
    driver.verify()
    assert driver.scheduler.counters.preemptions == 0
    assert together == 3
    computed = driver.scheduler.counters.computed_tokens
    assert computed == 9 * (60 + 99), "something was computed twice"
