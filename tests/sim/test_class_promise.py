"""The promise of the two classes, in simulated time: realtime work is hardly slower over a backlog
of batch work, which still has its share, and little throughput is lost by it."""

from __future__ import annotations

from random import Random

import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.request import ServiceClass, Submission
from octavo.sim.simulation import Report, Simulation, percentile
from support.core_driver import submission

SECONDS = 60.0


def config(**changes: object) -> SchedulerConfig:
    values = {
        "num_blocks": 1200,
        "max_model_len": 2048,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 256,
        "max_waiting_requests": 10_000,
    }
    return SchedulerConfig(**(values | changes))  # type: ignore[arg-type]


def realtime(rate: float, seed: int = 1, until: float = SECONDS) -> list[Submission]:
    rng, now, made = Random(seed), 0.0, []
    while (now := now + rng.expovariate(rate)) < until:
        prompt = [rng.randrange(30_000) for _ in range(rng.randint(20, 200))]
        made.append(
            submission(
                f"rt{len(made)}", prompt, seed=len(made), arrival=now, ignore_eos=True,
                max_tokens=rng.randint(10, 80),
            )
        )  # fmt: skip
    return made


def backlog(count: int, seed: int = 2) -> list[Submission]:
    rng = Random(seed)
    return [
        submission(
            f"b{i}", [rng.randrange(30_000) for _ in range(rng.randint(50, 600))], seed=i,
            max_tokens=rng.randint(20, 200), ignore_eos=True, service_class=ServiceClass.BATCH,
        )
        for i in range(count)
    ]  # fmt: skip


def run(
    arrivals: list[Submission], in_flight: int = 1, **changes: object
) -> tuple[Report, Simulation]:
    simulation = Simulation(config(**changes), max_in_flight=in_flight)
    return simulation.run(arrivals, until=SECONDS), simulation


def ttft95(report: Report) -> float:
    begun = [told for told in report.of(ServiceClass.REALTIME) if told.submission.arrival < 55]
    assert len(begun) > 50
    return percentile((told.ttft for told in begun), 0.95)


@pytest.mark.parametrize("blocks", [1200, 300])
def test_realtime_hardly_notices_a_backlog_of_batch_work(blocks: int) -> None:
    """With room for all rows, and with blocks short."""
    unloaded, _ = run(realtime(2.0), num_blocks=blocks)
    alone, _ = run(backlog(2000), num_blocks=blocks)
    both, simulation = run(realtime(2.0) + backlog(2000), num_blocks=blocks)
    assert ttft95(both) <= ttft95(unloaded) + 1.5 * both.longest_step
    assert simulation.scheduler.counters.preemptions_by["class/batch"] > 0
    assert not any(told.preemptions for told in both.of(ServiceClass.REALTIME))
    assert both.generated(ServiceClass.BATCH) >= 0.05 * both.generated()
    assert both.generated() >= 0.9 * alone.generated()


def test_a_burst_gets_in_at_once() -> None:
    """Ten at a time over rows full of batch work: they do not make way one step after another."""
    burst = [
        submission(f"rt{i}", [i] * 20, seed=i, max_tokens=5, arrival=5.0, ignore_eos=True)
        for i in range(10)
    ]
    report, simulation = run(backlog(500) + burst)
    times = [told.ttft for told in report.of(ServiceClass.REALTIME)]
    assert max(time for time in times if time is not None) <= 2 * report.longest_step
    assert None not in times
    assert simulation.scheduler.counters.preemptions_by == {"class/batch": 10}
