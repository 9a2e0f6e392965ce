"""NUMA: keeping a process's threads beside the memory that they read.

Owns: which processors belong to which node, and holding a process to one node.
Does not know: models, thread pools. The root is an argument, so that tests bring their own.

Memory lies on the node of the thread that touches it first. Threads of another node read it through
the link between the two, which is slower and shared; so by default an engine computes on one node,
and a machine of several runs one engine a node.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

NODES = Path("/sys/devices/system/node")

Node = frozenset[int]


def nodes(allowed: Iterable[int] | None = None, root: Path = NODES) -> tuple[Node, ...]:
    """The processors of each node that are `allowed` (the affinity mask), the largest first. Empty
    where there is one node only, or none is known."""
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    mask = frozenset(allowed)
    try:
        folders = sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
        found = [_processors((path / "cpulist").read_text()) & mask for path in folders]
    except (OSError, ValueError):
        return ()
    found = sorted((node for node in found if node), key=len, reverse=True)
    return tuple(found) if len(found) > 1 else ()


def stay_on_one_node(threads: int, among: tuple[Node, ...]) -> Node | None:
    """Holds this process, and the threads it will start, to the first node of `among` where
    `threads` fit on it; returns that node, or None where nothing was done. To be called before the
    threads start and memory is touched."""
    if not among or threads > len(among[0]):
        return None
    os.sched_setaffinity(0, among[0])
    return among[0]


def _processors(text: str) -> Node:
    """ "0-3,8" as numbers. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
