"""The checks see what they are for: each corruption of the books is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.core.invariants import Endings, InvariantError, check, check_plan
from octavo.core.request import FinishReason, Output
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import State
from support.core_driver import Driver, small_pool, submission


def busy() -> Scheduler:
    driver = Driver(small_pool(max_num_seqs=3))
    driver.add(submission("a", [1] * 9, n=2))
    for name in "bcd":
        driver.add(submission(name, [ord(name)] * 3))
    for _ in range(3):
        driver.step()
    check(driver.scheduler)
    return driver.scheduler


def first(s: Scheduler):  # type: ignore[no-untyped-def]
    return s.books.running[0]


CORRUPTIONS: dict[str, Callable[[Scheduler], object]] = {
    "a table lost a block": lambda s: first(s).tables[0].pop(),
    "a table has a block twice": lambda s: first(s).tables[0].append(first(s).tables[0][0]),
    "a leaked block": lambda s: s.books.tables.pools[0].allocate(),
    "a wrong count": lambda s: setattr(s.books.tables.pools[0], "_cached", 9),
    "a lost running sequence": lambda s: s.books.running.pop(),
    "a sequence that runs twice": lambda s: s.books.running.append(first(s)),
    "a state that lies": lambda s: setattr(first(s), "state", State.WAITING),
    "a choice miscounted": lambda s: setattr(first(s).live, "unfinished", 7),
    "a waiting one dropped": lambda s: s.books.queue.remove(s.books.queue.peek()),  # type: ignore[arg-type]
    "tokens of the queue miscounted": lambda s: setattr(s.books, "unstarted_tokens", 99),
    "more computed than known": lambda s: setattr(first(s), "computed", 99),
    "a yielding one miscounted": lambda s: setattr(s.books, "yielding", 1),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_corruption_is_found(what: str) -> None:
    scheduler = busy()
    CORRUPTIONS[what](scheduler)
    with pytest.raises(InvariantError):
        check(scheduler)


def test_two_rows_that_write_one_slot_are_found() -> None:
    scheduler = busy()
    plan = scheduler.schedule(1.0)
    check_plan(scheduler, plan)
    plan.rows[1].tables = plan.rows[0].tables
    plan.rows[1].start = plan.rows[1].write_from = plan.rows[0].start
    with pytest.raises(InvariantError, match="written by two rows"):
        check_plan(scheduler, plan)


def test_a_write_into_a_shared_block_is_found() -> None:
    scheduler = busy()
    plan = scheduler.schedule(1.0)
    scheduler.books.tables.pools[0].acquire(plan.rows[0].tables[0][-1])
    with pytest.raises(InvariantError, match="which is shared"):
        check_plan(scheduler, plan)


def test_an_empty_plan_with_work_is_found() -> None:
    scheduler = busy()
    plan = scheduler.schedule(1.0)
    scheduler.flights.clear()
    plan.rows.clear()
    with pytest.raises(InvariantError, match="the plan is empty"):
        check_plan(scheduler, plan)


def test_an_output_after_the_end_is_found() -> None:
    endings = Endings()
    endings.see([Output("a", 0, [1]), Output("a", 0, finish_reason=FinishReason.STOP)])
    endings.see([Output("a", 1, [1])])
    with pytest.raises(InvariantError, match="goes on after its end"):
        endings.see([Output("a", 0, [2])])
