"""In which order sequences are served, and so who is preempted first.

Owns: the ordering policies, small pure objects.
Does not know: budgets, memory, or queues.

A policy is a key: what sorts first is served first, what sorts last is the victim. A sequence that
has its row in a step is never chosen as a victim in that step, whatever the policy says. The class
comes before everything else (`ByClass`); the policies proper order what is within one.
"""

from __future__ import annotations

from typing import Protocol

from octavo.core.fairness import Fair
from octavo.core.sequence import Key, Live, Sequence

NAMES = ("fcfs", "priority", "fair")


class Policy(Protocol):
    name: str

    def key(self, sequence: Sequence) -> Key:
        """Sorts ascending in order of service. Must not change while the sequence is queued."""
        ...

    def entered(self, live: Live) -> None:
        """A request has come; it is not queued yet."""
        ...

    def began(self, live: Live) -> None:
        """Its first row is planned."""
        ...

    def left(self, live: Live) -> None:
        """All its choices have ended."""
        ...


class Stateless:
    """A policy that follows from each request alone."""

    def entered(self, live: Live) -> None:
        pass

    def began(self, live: Live) -> None:
        pass

    def left(self, live: Live) -> None:
        pass


class Fcfs(Stateless):
    """First come, first served. A priority given with a request is accepted and ignored."""

    name = "fcfs"

    def key(self, sequence: Sequence) -> Key:
        return (sequence.live.submission.arrival, sequence.rid)


class Priority(Stateless):
    """Lower priority values first, then first come; the victim is the latest of the lowest.

    With `ageing`, a wait of so many seconds counts as much as one level, so that nobody waits for
    ever. Two requests age alike: which of them goes first is settled when the later one comes.
    """

    name = "priority"

    def __init__(self, ageing: float = 0.0) -> None:
        self._ageing = ageing

    def key(self, sequence: Sequence) -> Key:
        arrival = sequence.live.submission.arrival
        if self._ageing:
            due = sequence.priority * self._ageing + arrival
            return (due, arrival, sequence.rid)
        return (sequence.priority, arrival, sequence.rid)


class ByClass:
    """Realtime before batch, and `within` a class another policy."""

    def __init__(self, within: Policy) -> None:
        self._within = within
        self.name = within.name
        self.entered, self.began, self.left = within.entered, within.began, within.left

    def key(self, sequence: Sequence) -> Key:
        return (sequence.rank, *self._within.key(sequence))


def make_policy(name: str, ageing: float = 0.0) -> Policy:
    """Raises ValueError for an unknown name."""
    if name == Fcfs.name:
        return Fcfs()
    if name == Priority.name:
        return Priority(ageing)
    if name == Fair.name:
        return Fair()
    raise ValueError(f"unknown scheduling policy {name!r}; known are {', '.join(NAMES)}")
