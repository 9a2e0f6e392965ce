"""The block pool: counts, order of reuse, and case C10."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.blocks import BlockError, BlockPool, GroupSpec


def pool(n: int = 8) -> BlockPool:
    return BlockPool(GroupSpec(n, 4))


def name(i: int) -> bytes:
    return i.to_bytes(16, "little")


def take(p: BlockPool, n: int) -> list[int]:
    return [p.allocate() for _ in range(n)]


def test_counts_add_up() -> None:
    p = pool()
    table = take(p, 3)
    p.publish(table[0], name(0))
    assert (p.held, p.cached, p.free) == (3, 0, 5)
    p.release(table)
    assert (p.held, p.cached, p.free, p.available) == (0, 1, 7, 8)
    p.check()


def test_an_empty_pool_raises() -> None:
    p = pool(2)
    take(p, 2)
    with pytest.raises(BlockError, match="all 2 blocks are held"):
        p.allocate()


def test_c10_double_free_raises() -> None:
    p = pool()
    table = take(p, 2)
    p.release(table)
    with pytest.raises(BlockError, match="freed twice"):
        p.release(table)
    p.check()


def test_c10_the_same_block_twice_in_one_release_raises() -> None:
    p = pool()
    block = p.allocate()
    with pytest.raises(BlockError, match="freed twice"):
        p.release([block, block])
    p.check()
    assert p.held == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_c10_fork_of_four_freed_in_all_orders(order: tuple[int, ...]) -> None:
    p = pool()
    shared = take(p, 2)
    for _ in range(3):
        for block in shared:
            p.acquire(block)
    assert [p.refs(b) for b in shared] == [4, 4]
    for i, _ in enumerate(order):
        p.release(shared)
        assert p.refs(shared[0]) == 3 - i
        p.check()
    assert p.free == 8


def test_c10_tail_first_so_that_prefixes_survive() -> None:
    p = pool(4)
    table = take(p, 4)
    for i, block in enumerate(table):
        p.publish(block, name(i))
    p.release(table)
    assert p.free_list() == table[::-1]
    take(p, 2)
    assert [p.lookup(name(i)) is not None for i in range(4)] == [True, True, False, False]
    assert p.evictions == 2


def test_c10_a_cached_block_is_hit_again_before_eviction() -> None:
    p = pool(2)
    block = p.allocate()
    p.publish(block, name(7))
    p.release([block])
    assert p.lookup(name(7)) == block
    p.acquire(block)
    assert (p.held, p.cached, p.refs(block)) == (1, 0, 1)
    assert p.allocate() != block
    p.check()


def test_uncached_blocks_are_reused_before_cached_ones() -> None:
    p = pool(3)
    kept, lost = p.allocate(), p.allocate()
    p.publish(kept, name(1))
    p.release([kept])
    p.release([lost])
    assert p.free_list() == [lost, 2, kept]


def test_content_keeps_its_first_block() -> None:
    p = pool()
    a, b = take(p, 2)
    p.publish(a, name(1))
    p.publish(b, name(1))
    assert p.lookup(name(1)) == a
    assert p.hash_of(b) is None
    p.check()


def test_a_free_block_cannot_be_shared_or_published() -> None:
    p = pool()
    with pytest.raises(BlockError):
        p.acquire(3)
    with pytest.raises(BlockError):
        p.publish(3, name(1))


def test_unpublish_only_while_held() -> None:
    p = pool()
    block = p.allocate()
    p.publish(block, name(1))
    p.unpublish(block)
    assert p.lookup(name(1)) is None
    p.publish(block, name(2))
    p.release([block])
    with pytest.raises(BlockError):
        p.unpublish(block)


def test_reset_forgets_content_and_keeps_holders() -> None:
    p = pool()
    a, b = take(p, 2)
    p.publish(a, name(1))
    p.publish(b, name(2))
    p.release([a])
    assert p.reset_cache() == 2
    assert (p.held, p.cached, p.free) == (1, 0, 7)
    p.check()


@pytest.mark.parametrize("spec", [(0, 16), (4, 0), (-1, 16)])
def test_a_group_without_room_is_refused(spec: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        GroupSpec(*spec)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=120))
def test_any_sequence_of_operations_keeps_the_books(ops: list[tuple[int, int]]) -> None:
    p = pool(6)
    tables: list[list[int]] = []
    for op, arg in ops:
        if op == 0 and p.available:
            tables.append([p.allocate()])
        elif op == 1 and tables:
            p.release(tables.pop(arg % len(tables)))
        elif op == 2 and tables:
            p.publish(tables[arg % len(tables)][0], name(arg))
        elif op == 3 and (block := p.lookup(name(arg))) is not None:
            p.acquire(block)
            tables.append([block])
        elif op == 4 and arg == 0:
            p.reset_cache()
        p.check()
        for block in range(p.total):
            assert p.refs(block) == sum(t.count(block) for t in tables)
