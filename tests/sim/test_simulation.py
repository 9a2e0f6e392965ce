"""Simulated time: the clock, the cost of a step, and a run of the engine's loop on both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.config import SchedulerConfig
from octavo.core.plan import Row, StepPlan, Want
from octavo.core.request import Submission
from octavo.sim.clock import SimulatedClock
from octavo.sim.cost_executor import CostExecutor, CostModel
from octavo.sim.simulation import Report, Simulation, percentile
from support.core_driver import submission


def config(**changes: object) -> SchedulerConfig:
    values = {"num_blocks": 256, "max_model_len": 1024, "max_num_batched_tokens": 64}
    return SchedulerConfig(**(values | changes))  # type: ignore[arg-type]


def plan(step: int, *rows: tuple[int, int]) -> StepPlan:
    """Rows of (start, count)."""
    made = StepPlan(step=step)
    made.rows = [
        Row(rid, start, [1] * count, ([],), start, count, Want.NONE)
        for rid, (start, count) in enumerate(rows)
    ]
    return made


def test_the_clock_moves_forward_only() -> None:
    clock = SimulatedClock(5.0)
    clock.advance(1.5)
    clock.advance_to(3.0)
    assert clock.now() == 6.5
    clock.advance_to(7.0)
    assert clock.now() == 7.0
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="forward only"):
            clock.advance(wrong)


def test_a_step_costs_by_tokens_rows_and_kv_read() -> None:
    model = CostModel(base=1.0, per_token=0.1, per_row=0.01, per_kv_token=0.001)
    assert model.seconds(plan(0, (0, 1))) == pytest.approx(1.111)
    # A chunk of ten at 90 reads a hundred tokens once; a decode at 99 as many.
    assert model.seconds(plan(0, (90, 10), (99, 1))) == pytest.approx(1 + 1.1 + 0.02 + 0.2)
    with pytest.raises(ValueError, match=r"per_row is -1"):
        CostModel(per_row=-1.0)


def run(arrivals: list[Submission], in_flight: int = 1) -> tuple[Report, Simulation]:
    cost = CostModel(base=0.01, per_token=0.001, per_row=0.0, per_kv_token=0.0)
    simulation = Simulation(config(), cost, max_in_flight=in_flight)
    return simulation.run(arrivals), simulation


def test_latencies_follow_from_the_costs() -> None:
    report, simulation = run(
        [
            submission("a", [1] * 20, max_tokens=3, arrival=1.0),
            submission("b", [2] * 4, max_tokens=1, arrival=1.005),
        ]
    )
    a, b = report.requests
    assert a.ttft == pytest.approx(0.03)
    # b came during the first step: it waits for its end, then shares one with a's second token.
    assert b.ttft == pytest.approx(0.03 - 0.005 + 0.015)
    assert a.tpot == pytest.approx((0.015 + 0.011) / 2)
    assert b.tpot is None and b.latency == b.ttft
    assert report.longest_step == pytest.approx(0.03)
    assert (report.steps, report.generated()) == (3, 4)
    assert report.seconds == simulation.clock.now() == pytest.approx(1.056)


def test_two_steps_in_flight_are_computed_one_after_the_other() -> None:
    clock = SimulatedClock()

    class Echo:
        def submit(self, plan: StepPlan) -> int:
            return plan.step

        def collect(self, handle: int) -> object:
            return handle

    executor = CostExecutor(clock, CostModel(1.0, 0.0, 0.0, 0.0), Echo(), 2)  # type: ignore[arg-type]
    first, second = executor.submit(plan(0, (0, 1))), executor.submit(plan(1, (0, 1)))
    assert clock.now() == 0.0
    executor.collect(first)
    assert clock.now() == 1.0
    executor.collect(second)
    assert clock.now() == 2.0


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_same_arrivals_give_the_same_run(in_flight: int) -> None:
    reports = []
    for _ in range(2):
        arrivals = [
            submission(f"r{i}", [i] * (5 + 13 * i % 90), seed=i, max_tokens=20, arrival=0.013 * i)
            for i in range(40)
        ]
        reports.append(run(arrivals, in_flight)[0])
    first, second = reports
    assert [told.ttft for told in first.requests] == [told.ttft for told in second.requests]
    assert first.seconds == second.seconds
    assert first.generated() == 40 * 20


def test_what_is_refused_is_told() -> None:
    report, _ = run([submission("big", [1] * 2000, max_tokens=1)])
    assert report.requests[0].refused == "context_length_exceeded"
    assert report.requests[0].ttft is None


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    below = sum(value < found for value in values)
    assert below < share * len(values)


def test_what_never_came_counts_as_late() -> None:
    assert percentile([1.0, None], 1.0) == float("inf")
    with pytest.raises(ValueError, match="no value"):
        percentile([], 0.5)
