"""Two classes in one pool: who goes first, who makes way, and what batch work has for certain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.config import SchedulerConfig
from octavo.core.events import EventKind
from octavo.core.policy import ByClass, Fcfs, Priority
from octavo.core.request import ServiceClass
from octavo.core.sequence import Live, Sequence
from octavo.core.share import BatchShare
from support.core_driver import Driver, small_pool, submission
from support.core_fuzz import Optimist

BATCH = ServiceClass.BATCH


def full_of_batch(
    rows: int = 4, lag: bool = False, careless: bool = False, **changes: object
) -> Driver:
    """All rows decode batch work, and two more of the class wait."""
    config = small_pool(**({"num_blocks": 64, "max_num_seqs": rows} | changes))
    driver = Driver(config, lag=lag)
    if careless:
        driver.scheduler.books.lengths = Optimist()
    for i in range(rows + 2):
        driver.add(
            submission(f"b{i}", [i] * 3, seed=i, max_tokens=30, arrival=i, service_class=BATCH)
        )
    for _ in range(4):
        driver.step()
    assert len(driver.scheduler.books.running) == rows
    return driver


def events(driver: Driver, kind: EventKind) -> list[str]:
    return [event.request_id for event in driver.log if event.kind is kind]


def tokens_of(driver: Driver, prefix: str) -> int:
    """Tokens computed in rows of these requests."""
    return sum(
        event.value
        for event in driver.log
        if event.kind is EventKind.ROW and event.request_id.startswith(prefix)
    )


@pytest.mark.parametrize(("lag", "steps"), [(False, 1), (True, 2)])
def test_realtime_requests_push_the_last_batch_rows_out(lag: bool, steps: int) -> None:
    driver = full_of_batch(lag=lag)
    for name in ("x", "y"):
        driver.add(submission(name, [9] * 3, max_tokens=4, arrival=50))
    for _ in range(steps):
        driver.step()
    assert sorted(events(driver, EventKind.PREEMPTED)) == ["b2", "b3"]
    running = [s.live.submission.request_id for s in driver.scheduler.books.running]
    assert running == ["x", "y", "b0", "b1"]
    assert driver.scheduler.counters.preemptions_by == {"class/batch": 2}
    driver.run()
    driver.verify()
    # Those that were pushed out come before the ones that never began.
    assert events(driver, EventKind.ADMITTED)[-4:] == ["b2", "b3", "b4", "b5"]


@pytest.mark.parametrize("lag", [False, True])
def test_batch_rows_make_way_for_want_of_blocks_and_no_more_than_needed(lag: bool) -> None:
    driver = full_of_batch(rows=6, lag=lag, careless=True, num_blocks=16)
    held = driver.scheduler.stats().blocks_held
    assert 0 < held < 16
    free = 16 - held
    driver.add(submission("x", [9] * 4 * (free + 1), max_tokens=2, arrival=50))
    for _ in range(3):
        driver.step()
    assert "x" in events(driver, EventKind.ADMITTED)
    assert set(events(driver, EventKind.PREEMPTED)) <= {"b3", "b4", "b5"}
    assert 1 <= len(events(driver, EventKind.PREEMPTED)) <= 3
    driver.run()
    driver.verify()
    assert driver.finals["x", 0].preemptions == 0


def test_nobody_makes_way_in_vain() -> None:
    """What realtime work holds leaves no room for the request, whatever batch rows do."""
    driver = Driver(small_pool(num_blocks=18, max_num_seqs=8, max_num_batched_tokens=64))
    driver.add(submission("big", [1] * 48, max_tokens=6, arrival=0))
    driver.add(submission("b", [2] * 4, max_tokens=10, arrival=1, service_class=BATCH))
    driver.step()
    assert len(driver.scheduler.books.running) == 2, "both fit"
    driver.add(submission("other", [3] * 40, max_tokens=4, arrival=2))
    for _ in range(4):
        driver.step()
    assert events(driver, EventKind.PREEMPTED) == []
    driver.run()
    driver.verify()


def test_batch_waits_behind_realtime_and_fills_what_is_left() -> None:
    driver = Driver(small_pool(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=16))
    driver.add(submission("b", [1] * 40, max_tokens=2, arrival=0, service_class=BATCH))
    driver.step()
    driver.add(submission("x", [2] * 6, max_tokens=3, arrival=1))
    driver.step()
    counts = {row.rid: len(row.tokens) for row in driver.plans[-1].rows}
    # The realtime prompt in full; batch work at most half of the budget beside it.
    assert counts == {1: 6, 0: 8}
    assert driver.plans[-1].rows[0].rid == 1
    driver.run()
    driver.verify()


def saturated(share: float, rows: int, lag: bool, steps: int) -> Driver:
    """Realtime requests, more of them than there is room for, and batch work beside."""
    config = SchedulerConfig(
        num_blocks=64, block_size=4, max_model_len=64, max_num_seqs=rows,
        max_num_batched_tokens=16, batch_share=share,
    )  # fmt: skip
    driver = Driver(config, lag=lag)
    for i in range(300):
        driver.add(submission(f"b{i}", [i] * 10, seed=i, max_tokens=10, service_class=BATCH))
    number = 0
    for _ in range(steps):
        while len(driver.scheduler.books.queue) < 4:
            driver.add(
                submission(f"x{number}", [number % 50] * 12, max_tokens=8, arrival=driver.now)
            )
            number += 1
        driver.step()
    return driver


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("share", [0.05, 0.25])
def test_batch_work_has_its_share_of_a_saturated_engine(share: float, rows: int, lag: bool) -> None:
    driver = saturated(share, rows, lag, steps=700)
    batch, total = tokens_of(driver, "b"), tokens_of(driver, "")
    # A share of the rows, each a token a step, falls a little short of the share of tokens.
    assert batch >= 0.75 * share * total
    assert batch <= 1.5 * share * total + 40
    finished = [key for key in driver.finals if key[0].startswith("b")]
    assert len(finished) >= 0.5 * share * total / 20
    # A row that was let in at the class's expense is not pushed out again.
    assert driver.scheduler.counters.preemptions_by.get("class/batch", 0) <= 2
    driver.run()
    driver.verify()


def test_without_a_share_batch_work_waits_for_a_gap() -> None:
    driver = saturated(0.0, 4, False, steps=200)
    assert tokens_of(driver, "b") <= 40
    driver.run()
    driver.verify()


def test_a_realtime_waiter_lends_its_class() -> None:
    driver = Driver(small_pool(num_blocks=64, max_num_batched_tokens=8, max_num_seqs=2))
    driver.add(submission("b", [1] * 40, max_tokens=2, service_class=BATCH))
    driver.step()
    driver.add(submission("x", [1] * 40, max_tokens=2, arrival=1))
    driver.step()
    owner = driver.scheduler.books.running[0]
    assert (owner.batch, owner.rank) == (True, 0)
    for name, token in (("y", 2), ("z", 3)):
        driver.add(submission(name, [token] * 40, max_tokens=2, arrival=2))
    driver.step()
    assert events(driver, EventKind.PREEMPTED) == []
    driver.run()
    driver.verify()
    order = [(event.kind, event.request_id) for event in driver.log]
    gone = order.index((EventKind.PREEMPTED, "b"))
    assert order.index((EventKind.WOKEN, "x")) < gone


def sequence(rid: int, arrival: float, priority: int = 0, batch: bool = False) -> Sequence:
    service_class = BATCH if batch else ServiceClass.REALTIME
    request = submission(
        f"r{rid}", [1], arrival=arrival, priority=priority, service_class=service_class
    )
    return Sequence(rid, Live(request, b""), 0, [1], 1, 9, ([],))


def test_the_class_comes_before_any_priority() -> None:
    ordered = sorted(
        (sequence(0, 0.0, -9, batch=True), sequence(1, 9.0, 9), sequence(2, 8.0, 9)),
        key=ByClass(Priority()).key,
    )
    assert [s.rid for s in ordered] == [2, 1, 0]
    assert ByClass(Fcfs()).name == "fcfs"


def test_who_waits_long_enough_is_served() -> None:
    old, new = sequence(0, 0.0, priority=1), sequence(1, 59.0, priority=0)
    newer = sequence(2, 61.0, priority=0)
    ageing, strict = Priority(ageing=60.0), Priority()
    assert sorted((newer, old, new), key=ageing.key) == [new, old, newer]
    assert sorted((newer, old, new), key=strict.key) == [new, newer, old]


steps = st.tuples(st.integers(0, 64), st.integers(0, 64), st.integers(0, 8))


@given(st.floats(0.01, 0.5), st.lists(steps, max_size=200))
def test_the_credit_is_bounded_and_never_less_than_what_is_owed(
    share: float, history: list[tuple[int, int, int]]
) -> None:
    account = BatchShare(share, rows=16, most=64)
    total = had = sheltered = 0.0
    for realtime, filling, shelter in history:
        account.settle(realtime + filling + shelter, filling, shelter, wanted=True)
        total += realtime + filling + shelter
        had += filling + shelter
        sheltered += shelter
        assert -sheltered - 1 <= account.credit <= 64
        # Whoever pays the credit as it stands has given the class its share, up to the bound.
        if account.credit < 64:
            assert had + max(0, account.credit) + 1 >= min(64, share * total - had)
    account.settle(10, 0, 0, wanted=False)
    assert account.credit == 0


def test_what_fills_a_step_is_no_debt() -> None:
    account = BatchShare(0.1, rows=8, most=100)
    for _ in range(10):
        account.settle(100, 100, 0, wanted=True)
    assert account.credit == 0
    account.settle(100, 0, 0, wanted=True)
    assert account.credit == 10
    account.settle(100, 0, 50, wanted=True)
    assert account.credit == -30


@pytest.mark.parametrize(
    ("field", "value"), [("batch_share", 0.6), ("batch_share", -0.1), ("priority_ageing", -1.0)]
)
def test_limits_that_make_no_sense(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        small_pool(**{field: value})
