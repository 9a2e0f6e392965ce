"""Who has not begun, by service class, and how fast each class's queue moves.

Owns: the counts of unstarted requests, and the rate at which requests begin that had to wait.
Does not know: the order of the queues, or what holds a request up.

The rate counts only starts of requests that an earlier step left waiting, over the time in which
the class had requests waiting: starts into free rows say nothing about how fast a full engine takes
more, and neither does the time in which nobody waited. A class that is passed over by another moves
as slowly as it is seen to move.
"""

from __future__ import annotations

from collections import deque

from octavo.core.request import ServiceClass
from octavo.core.sequence import Live

WINDOW = 64
ENOUGH = 8
"""Starts after which the rate is believed."""


class Backlog:
    """The unstarted requests of one class."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        """Of their prompts."""
        self.left = 0
        """Those of them that the latest step left waiting."""
        self._mark = 0
        self._busy = 0.0
        """Seconds in which somebody waited."""
        self._starts: deque[float] = deque(maxlen=WINDOW)

    def enter(self, live: Live) -> None:
        self.requests += 1
        self.tokens += len(live.submission.prompt)

    def leave(self, live: Live, began: bool) -> None:
        self.requests -= 1
        self.tokens -= len(live.submission.prompt)
        if live.sequences[0].rid < self._mark:
            self.left -= 1
            if began:
                self._starts.append(self._busy)

    def planned(self, next_rid: int) -> None:
        """A step was planned: whoever has not begun was left waiting by it."""
        self._mark, self.left = next_rid, self.requests

    def passed(self, seconds: float) -> None:
        if self.left:
            self._busy += seconds

    @property
    def starts_per_second(self) -> float | None:
        """None until enough requests were seen to begin after a wait."""
        if len(self._starts) < ENOUGH:
            return None
        seconds = self._busy - self._starts[0]
        return (len(self._starts) - 1) / seconds if seconds > 0 else None


class Demand:
    def __init__(self) -> None:
        self._classes = {one: Backlog() for one in ServiceClass}

    def of(self, live: Live) -> Backlog:
        return self._classes[live.submission.service_class]

    def ahead_of(self, service_class: ServiceClass) -> tuple[Backlog, ...]:
        """The backlogs that go before or along with a request of this class, its own first."""
        realtime = self._classes[ServiceClass.REALTIME]
        if service_class is ServiceClass.REALTIME:
            return (realtime,)
        return (self._classes[ServiceClass.BATCH], realtime)

    def counts(self) -> tuple[int, int]:
        """Unstarted requests and their prompt tokens, of all classes. Raises ValueError where a
        count makes no sense."""
        for one, backlog in self._classes.items():
            if not 0 <= backlog.left <= backlog.requests:
                raise ValueError(f"{backlog.left} of {backlog.requests} {one} requests were left")
        backlogs = self._classes.values()
        return sum(one.requests for one in backlogs), sum(one.tokens for one in backlogs)

    def planned(self, next_rid: int) -> None:
        for backlog in self._classes.values():
            backlog.planned(next_rid)

    def passed(self, seconds: float) -> None:
        for backlog in self._classes.values():
            backlog.passed(seconds)
