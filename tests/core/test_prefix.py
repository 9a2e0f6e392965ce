"""Chain hashes: keyed, incremental, and the same for the same content only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.core.prefix import DIGEST_SIZE, chain_hash, extend_hashes, hashes_of_ids, root_hash

tokens = st.lists(st.integers(0, 2**31), max_size=40)


def test_the_root_is_keyed_with_every_part() -> None:
    roots = [
        root_hash(),
        root_hash("f"),
        root_hash("", "f"),
        root_hash("", None, "f"),
        root_hash("fg"),
        root_hash("f", "g"),
        root_hash("f", None, "g"),
    ]
    assert len(set(roots)) == len(roots)
    assert all(len(root) == DIGEST_SIZE for root in roots)


@given(tokens, st.integers(1, 8), st.integers(0, 40))
def test_incremental_equals_whole(ids: list[int], size: int, cut: int) -> None:
    root = root_hash("f")
    whole = extend_hashes([], root, ids, size)
    part = extend_hashes([], root, ids[:cut], size)
    assert part == whole[: len(part)]
    assert extend_hashes(part, root, ids, size) == whole
    assert len(whole) == len(ids) // size


@given(tokens, tokens)
def test_equal_hash_means_equal_prefix(a: list[int], b: list[int]) -> None:
    root = root_hash()
    for i, (x, y) in enumerate(
        zip(extend_hashes([], root, a, 4), extend_hashes([], root, b, 4), strict=False)
    ):
        assert (x == y) == (a[: 4 * (i + 1)] == b[: 4 * (i + 1)])


def test_the_chain_depends_on_what_came_before() -> None:
    assert chain_hash(root_hash("a"), [1, 2]) != chain_hash(root_hash("b"), [1, 2])


def test_trace_ids_become_chains() -> None:
    root = root_hash()
    a = hashes_of_ids(root, [0, 1, 2], blocks_per_id=3)
    b = hashes_of_ids(root, [0, 1, 9], blocks_per_id=3)
    assert len(a) == 9
    assert a[:6] == b[:6]
    assert not set(a[6:]) & set(b[6:])
