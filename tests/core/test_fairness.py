"""Fairness between tenants: by counters of tokens, within a class."""

from __future__ import annotations

import pytest

from octavo.core.events import EventKind
from octavo.core.fairness import FORGET_AT, Fair
from octavo.core.request import ServiceClass
from octavo.core.sequence import Live
from support.core_driver import Driver, small_pool, submission


def driver(policy: str = "fair", **changes: object) -> Driver:
    return Driver(small_pool(policy=policy, num_blocks=64, **({"max_num_seqs": 1} | changes)))


def admitted(run: Driver) -> list[str]:
    return [event.request_id for event in run.log if event.kind is EventKind.ADMITTED]


def test_one_request_does_not_wait_behind_a_tenant_with_many() -> None:
    orders = {}
    for policy in ("fair", "fcfs"):
        run = driver(policy)
        for i in range(20):
            run.add(submission(f"a{i}", [i] * 5, seed=i, max_tokens=5, tenant="a", arrival=i))
        run.add(submission("b", [9] * 5, max_tokens=5, tenant="b", arrival=30))
        run.run()
        run.verify()
        orders[policy] = admitted(run)
    assert orders["fair"].index("b") <= 1
    assert orders["fcfs"].index("b") == 20
    assert [one for one in orders["fair"] if one != "b"] == [f"a{i}" for i in range(20)]


@pytest.mark.parametrize("rows", [1, 4])
def test_tenants_have_equal_tokens_whatever_the_size_of_their_requests(rows: int) -> None:
    run = driver(max_num_seqs=rows, max_model_len=128)
    for i in range(120):
        run.add(submission(f"s{i}", [i % 50, 1], seed=i, max_tokens=4, tenant="small"))
    for i in range(60):
        run.add(submission(f"l{i}", [i % 50, 2] * 12, seed=i, max_tokens=30, tenant="large"))
    had = {"s": 0, "l": 0}
    while sum(had.values()) < 1200:
        for output in run.step():
            if output.finish_reason is not None:
                request = run.requests[output.request_id]
                size = len(request.prompt) + len(run.collected[output.request_id, 0])
                had[output.request_id[0]] += size
    assert abs(had["s"] - had["l"]) <= 54 * (rows + 1)
    run.run()
    run.verify()


def test_a_quiet_tenant_saves_nothing_up() -> None:
    run = driver()
    for i in range(10):
        run.add(submission(f"a{i}", [i] * 5, seed=i, max_tokens=5, tenant="a", arrival=run.now))
    while len(admitted(run)) < 8:
        run.step()
    for i in range(6):
        run.add(submission(f"b{i}", [i] * 5, seed=i, max_tokens=5, tenant="b", arrival=run.now))
    run.run()
    # b had nothing while a had eight; from now on they take turns.
    assert set(admitted(run)[8:12]) == {"a8", "a9", "b0", "b1"}


def test_what_was_expected_and_not_used_is_given_back() -> None:
    policy = Fair()
    first = Live(submission("x", [1] * 10, tenant="a", max_tokens=200), b"")
    policy.entered(first)
    policy.left(first)
    second = Live(submission("y", [1] * 10, tenant="a"), b"")
    policy.entered(second)
    assert (first.tag, second.tag) == (0.0, 0.0)


def test_classes_are_counted_apart() -> None:
    policy = Fair()
    batch = ServiceClass.BATCH
    for i in range(5):
        policy.entered(Live(submission(f"x{i}", [1], tenant="a", service_class=batch), b""))
    realtime = Live(submission("y", [1], tenant="a"), b"")
    policy.entered(realtime)
    assert realtime.tag == 0.0


def test_counters_of_tenants_that_are_gone_are_forgotten() -> None:
    policy = Fair()
    for i in range(10 * FORGET_AT):
        live = Live(submission(f"r{i}", [1], tenant=f"t{i}", max_tokens=1), b"")
        policy.entered(live)
        policy.began(live)
        policy.left(live)
        ahead = Live(submission(f"n{i}", [1], tenant="busy", max_tokens=9), b"")
        policy.entered(ahead)
        policy.began(ahead)
    assert len(policy) <= FORGET_AT
