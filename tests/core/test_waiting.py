"""The queue: the policy's order, lazy deletion, and how much of it is touched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.core.policy import Fcfs, Priority
from octavo.core.sequence import Live, Sequence
from octavo.core.waiting import WaitingQueue
from support.core_driver import submission


def sequence(rid: int, arrival: float = 0.0, priority: int = 0) -> Sequence:
    request = submission(f"r{rid}", [1], arrival=arrival, priority=priority)
    return Sequence(rid, Live(request, b""), 0, [1], 1, 9, ([],))


def drain(queue: WaitingQueue) -> list[int]:
    order = []
    while (head := queue.peek()) is not None:
        queue.remove(head)
        order.append(head.rid)
    return order


def test_first_come_first_served_whatever_the_priority() -> None:
    queue = WaitingQueue(Fcfs())
    for s in (sequence(0, 2.0, -9), sequence(1, 1.0, 9), sequence(2, 1.0, 0)):
        queue.push(s)
    assert drain(queue) == [1, 2, 0]


def test_lower_priority_values_go_first() -> None:
    queue = WaitingQueue(Priority())
    for s in (sequence(0, 0.0, 1), sequence(1, 5.0, -1), sequence(2, 4.0, -1)):
        queue.push(s)
    assert drain(queue) == [2, 1, 0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=80))
def test_any_order_of_pushes_and_removals(ops: list[tuple[bool, int]]) -> None:
    queue = WaitingQueue(Fcfs())
    inside: dict[int, Sequence] = {}
    for rid, (push, pick) in enumerate(ops):
        if push:
            inside[rid] = sequence(rid, float(pick))
            queue.push(inside[rid])
        elif inside:
            gone = inside.pop(list(inside)[pick % len(inside)])
            assert queue.remove(gone)
            assert not queue.remove(gone)
        assert len(queue) == len(inside)
    expected = sorted(inside.values(), key=Fcfs().key)
    assert drain(queue) == [s.rid for s in expected]


def test_removed_entries_do_not_pile_up() -> None:
    queue = WaitingQueue(Fcfs())
    everyone = [sequence(rid) for rid in range(5000)]
    for s in everyone:
        queue.push(s)
    for s in everyone[:-1]:
        queue.remove(s)
    assert len(queue._heap) < 200
    assert drain(queue) == [4999]


def test_the_first_few_stay_in_their_places() -> None:
    queue = WaitingQueue(Fcfs())
    everyone = [sequence(rid, float(-rid)) for rid in range(50)]
    for s in everyone:
        queue.push(s)
    queue.remove(everyone[48])
    touched = queue.touched
    assert [s.rid for s in queue.first(3)] == [49, 47, 46]
    assert queue.touched - touched <= 5
    assert len(queue.first(100)) == 49
    assert drain(queue) == [49, *range(47, -1, -1)]
