"""Threads and memory stay on one NUMA node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.machine import Machine, choose_threads
from octavo.numa import nodes, stay_on_one_node


def tree(root: Path, **lists: str) -> Path:
    for name, text in lists.items():
        (root / name).mkdir()
        (root / name / "cpulist").write_text(text + "\n")
    return root


def test_processors_of_the_mask_by_node_the_largest_first(tmp_path: Path) -> None:
    root = tree(tmp_path, node0="0-3,8", node1="4-7,9-15", node2="")
    assert nodes(range(16), root) == (
        frozenset({4, 5, 6, 7, *range(9, 16)}),
        frozenset({0, 1, 2, 3, 8}),
    )
    assert nodes([1, 2, 3, 4], root) == (frozenset({1, 2, 3}), frozenset({4}))


@pytest.mark.parametrize("lists", [{}, {"node0": "0-7"}, {"node0": "what", "node1": "1"}])
def test_one_node_or_none_known_is_nothing_to_care_about(
    tmp_path: Path, lists: dict[str, str]
) -> None:
    assert nodes(range(8), tree(tmp_path, **lists)) == ()


def test_a_mask_within_one_node_is_nothing_to_care_about(tmp_path: Path) -> None:
    assert nodes([0, 1], tree(tmp_path, node0="0-3", node1="4-7")) == ()


def test_by_default_an_engine_computes_on_one_node() -> None:
    machine = Machine(64, None, None, None, numa_nodes=(32, 32))
    assert str(choose_threads(machine, env={})) == (
        "32 threads: affinity 64, cgroup quota none, one of 2 NUMA nodes"
    )
    assert choose_threads(machine, flag=64, env={}).count == 64
    assert choose_threads(Machine(64, 8.0, None, None, (32, 32)), env={}).count == 8


def test_the_process_is_held_to_the_node_where_its_threads_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, mask: held.append(mask), raising=False)
    two = (frozenset(range(4, 8)), frozenset(range(3)))
    assert stay_on_one_node(5, two) is None and stay_on_one_node(2, ()) is None and held == []
    assert stay_on_one_node(4, two) == two[0] and held == [two[0]]
