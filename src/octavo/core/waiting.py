"""The queue of waiting sequences, in the policy's order.

Owns: a heap with lazy deletion.
Does not know: why a sequence waits.

Adding, taking and removing cost O(log n); nothing walks the queue. Entries of removed sequences
stay in the heap until they reach its head or outnumber the rest.
"""

from __future__ import annotations

import heapq

from octavo.core.policy import Policy
from octavo.core.sequence import Key, Sequence


class WaitingQueue:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[Key, int, Sequence]] = []
        self._tickets = 0
        self._size = 0
        self.touched = 0
        """Heap entries looked at: a measure of work, for tests."""

    def __len__(self) -> int:
        return self._size

    def push(self, sequence: Sequence) -> None:
        self._tickets += 1
        sequence.ticket = self._tickets
        heapq.heappush(self._heap, (self._policy.key(sequence), self._tickets, sequence))
        self._size += 1
        self.touched += 1

    def peek(self) -> Sequence | None:
        """The next sequence in order, left in its place."""
        while self._heap:
            self.touched += 1
            _, ticket, sequence = self._heap[0]
            if sequence.ticket == ticket:
                return sequence
            heapq.heappop(self._heap)
        return None

    def first(self, count: int) -> list[Sequence]:
        """The next `count` sequences in order (or fewer), left in their places."""
        taken: list[tuple[Key, int, Sequence]] = []
        while len(taken) < count and self.peek() is not None:
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return [sequence for _, _, sequence in taken]

    def remove(self, sequence: Sequence) -> bool:
        """Take a sequence out of the queue; False if it is not in it."""
        if not sequence.ticket:
            return False
        sequence.ticket = 0
        self._size -= 1
        if len(self._heap) > 2 * self._size + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)
        return True
