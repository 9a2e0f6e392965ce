"""Block tables: growth, sharing and copy-on-write (case C10), over one group and over two."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.blocks import GroupSpec
from octavo.core.plan import Copy
from octavo.core.tables import Tables


def tables(*blocks: int) -> Tables:
    return Tables([GroupSpec(n, 4) for n in blocks or (8,)])


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_c10_fork_of_four_appended_and_freed_in_all_orders(order: tuple[int, ...]) -> None:
    t = tables(16)
    first = t.empty()
    assert t.grow(first, 0, 6) == []
    forks = [first, *(t.share(first, 6) for _ in range(3))]
    copies = [len(t.grow(forks[i], 6, 7)) for i in order]
    assert copies == [1, 1, 1, 0]
    assert t.held == 1 + 4
    assert len({fork[0][1] for fork in forks}) == 4
    for i in order:
        t.release(forks[i])
        t.pools[0].check()
    assert t.held == 0


def test_a_full_shared_block_is_never_copied() -> None:
    t = tables()
    first = t.empty()
    t.grow(first, 0, 8)
    second = t.share(first, 8)
    assert t.lacking(second, 8, 9) == 1 - t.available
    assert t.grow(second, 8, 9) == []
    assert second[0][:2] == first[0][:2]


def test_a_row_that_writes_nothing_copies_nothing() -> None:
    t = tables()
    first = t.empty()
    t.grow(first, 0, 6)
    second = t.share(first, 6)
    assert t.lacking(second, 6, 6) == -t.available
    assert t.grow(second, 6, 6) == []


def test_a_written_block_is_not_findable_any_more() -> None:
    t = tables()
    first = t.empty()
    t.grow(first, 0, 4)
    t.publish(first, 0, b"x")
    assert t.hits([b"x"], 1) == 1
    t.grow(first, 3, 4)
    assert t.hits([b"x"], 1) == 0


def test_copies_name_their_group() -> None:
    t = tables(8, 9)
    first = t.empty()
    t.grow(first, 0, 2)
    second = t.share(first, 2)
    old = [table[0] for table in first]
    assert t.grow(second, 2, 3) == [Copy(g, old[g], second[g][0]) for g in (0, 1)]


def test_a_hit_needs_every_group() -> None:
    t = tables(8, 8)
    first = t.empty()
    t.grow(first, 0, 8)
    t.publish(first, 0, b"a")
    t.publish(first, 1, b"b")
    t.pools[1].unpublish(first[1][1])
    assert t.hits([b"a", b"b"], 2) == 1
    t.release(first)
    assert t.unheld_hits(0, [b"a", b"b"], 1) == 1
    second = t.empty()
    t.adopt(second, [b"a", b"b"], 1)
    assert t.unheld_hits(0, [b"a", b"b"], 1) == 0


def test_the_smallest_group_limits() -> None:
    t = tables(8, 5)
    assert (t.capacity, t.available) == (5, 5)


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 8), st.booleans())
def test_fitting_is_the_largest_end_that_can_grow(
    start: int, count: int, taken: int, shared: bool
) -> None:
    t = tables(9)
    table = t.empty()
    t.grow(table, 0, start)
    if shared:
        t.share(table, start)
    for _ in range(min(taken, t.available)):
        t.pools[0].allocate()
    ends = [e for e in range(start + 1, start + count + 1) if t.lacking(table, start, e) <= 0]
    assert max(ends, default=0) == max(0, t.fitting(table, start, start + count)) or not ends
    if ends:
        t.grow(table, start, max(ends))
        t.pools[0].check()
    else:
        assert t.fitting(table, start, start + count) <= start


@given(st.integers(0, 12), st.integers(0, 12))
def test_the_shared_prefix_is_found_by_bisection(own: int, shared: int) -> None:
    t = tables(30)
    table = t.empty()
    t.grow(table, 0, 4 * shared)
    t.share(table, 4 * shared)
    t.grow(table, 4 * shared, 4 * (shared + own))
    assert t.shared_prefix(table) == shared
