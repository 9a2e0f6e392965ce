"""In which order sequences are served, and so who is preempted first.

Owns: the ordering policies, small pure objects.
Does not know: budgets, memory, or queues.

A policy is a key: what sorts first is served first, what sorts last is the victim. A sequence that
has its row in a step is never chosen as a victim in that step, whatever the policy says.
"""

from __future__ import annotations

from typing import Protocol

from octavo.core.sequence import Sequence

Key = tuple[float, ...]


class Policy(Protocol):
    name: str

    def key(self, sequence: Sequence) -> Key:
        """Sorts ascending in order of service. Must not change while the sequence is queued."""
        ...


class Fcfs:
    """First come, first served. A priority given with a request is accepted and ignored."""

    name = "fcfs"

    def key(self, sequence: Sequence) -> Key:
        return (sequence.live.submission.arrival, sequence.rid)


class Priority:
    """Lower priority values first, then first come; the victim is the latest of the lowest."""

    name = "priority"

    def key(self, sequence: Sequence) -> Key:
        return (sequence.priority, sequence.live.submission.arrival, sequence.rid)


def make_policy(name: str) -> Policy:
    """Raises ValueError for an unknown name."""
    policies: dict[str, type[Fcfs] | type[Priority]] = {"fcfs": Fcfs, "priority": Priority}
    if name not in policies:
        raise ValueError(f"unknown scheduling policy {name!r}; known are {', '.join(policies)}")
    return policies[name]()
