"""Requests that must end by a time of their own.

Owns: the heap of deadlines, and failing what has passed its own.
Does not know: clocks, queues, or how a deadline was asked for.

A request that is not complete at its deadline is failed with the code "deadline_exceeded", whether
it waits or runs: no step is spent on an answer that nobody waits for any more.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from octavo.core.request import DEADLINE_EXCEEDED, Output, Submission
from octavo.core.sequence import Live

if TYPE_CHECKING:
    from octavo.core.lifecycle import Lifecycle


class Deadlines:
    """A heap with lazy deletion; adding and removing cost O(log n)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Live]] = []
        self._entries = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, live: Live) -> None:
        """Nothing happens where the request has no deadline."""
        deadline = live.submission.deadline
        if deadline is not None:
            self._entries += 1
            self._size += 1
            heapq.heappush(self._heap, (deadline, self._entries, live))

    def remove(self, live: Live) -> None:
        """The request has ended."""
        if live.submission.deadline is None:
            return
        self._size -= 1
        if len(self._heap) > 2 * self._size + 64:
            self._heap = [entry for entry in self._heap if entry[2].unfinished]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[Live]:
        """The unfinished requests whose deadline has passed, each once."""
        late = []
        while self._heap and self._heap[0][0] <= now:
            live = heapq.heappop(self._heap)[2]
            if live.unfinished:
                late.append(live)
        return late


def expire(books: Lifecycle, now: float) -> list[Output]:
    """Fail the requests that are late."""
    outputs: list[Output] = []
    for live in books.deadlines.due(now):
        generated = sum(sequence.outputs for sequence in live.sequences)
        message = late_message(live.submission, live.started is not None, generated)
        outputs += books.fail(live, message, DEADLINE_EXCEEDED)
    return outputs


def late_message(submission: Submission, begun: bool, generated: int) -> str:
    """What the client is told; the same wherever the deadline was noticed."""
    limit = f"{submission.timeout:g} s after its arrival"
    advice = "Give it more time, ask for fewer tokens, or try when there is less load."
    if not begun:
        return f"the request was still waiting to begin at its deadline, {limit}. {advice}"
    return (
        f"the request was not complete at its deadline, {limit}: {generated} tokens were "
        f"generated. {advice}"
    )
