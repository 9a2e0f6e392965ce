"""The adaptive batch under a ramp, in simulated time: it holds what fixed limits miss."""

from __future__ import annotations

from random import Random

from octavo.core.config import SchedulerConfig
from octavo.core.request import Submission
from octavo.sim.simulation import Report, Simulation, percentile
from support.core_driver import submission

TARGET = 0.04
SECONDS = 60.0


def ramp() -> list[Submission]:
    """From one request a second to a dozen."""
    rng, now, made = Random(5), 0.0, []
    while (now := now + rng.expovariate(1 + 24 * now / SECONDS)) < SECONDS:
        prompt = [rng.randrange(30_000) for _ in range(rng.randint(20, 200))]
        made.append(
            submission(
                f"r{len(made)}", prompt, seed=len(made), arrival=now, ignore_eos=True,
                max_tokens=rng.randint(40, 160),
            )
        )  # fmt: skip
    return made


def run(**changes: object) -> tuple[Report, Simulation]:
    config = SchedulerConfig(
        num_blocks=4096, max_model_len=1024, max_num_seqs=128, max_num_batched_tokens=512,
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    simulation = Simulation(config)
    return simulation.run(ramp(), until=SECONDS), simulation


def tpot95(report: Report) -> float:
    ended = [told for told in report.requests if told.ended is not None]
    assert len(ended) > 100
    return percentile((told.tpot for told in ended), 0.95)


def test_the_target_is_held_where_fixed_limits_miss_it() -> None:
    fixed, _ = run()
    held, simulation = run(target_tpot=TARGET)
    assert tpot95(fixed) > 2 * TARGET
    assert tpot95(held) <= 1.1 * TARGET
    # Not by idling: almost as much is generated.
    assert held.generated() >= 0.95 * fixed.generated()
    stats = simulation.scheduler.stats()
    assert stats.adaptive_rows < 128
    assert 0.5 * TARGET < stats.adaptive_tpot < 1.3 * TARGET
    assert min(stats.adaptive_changes_total.values()) > 10


def test_the_proportional_rule_is_the_better_one() -> None:
    step, _ = run(target_tpot=TARGET, adaptive_rule="step")
    proportional, _ = run(target_tpot=TARGET)
    assert tpot95(proportional) < 0.75 * tpot95(step)


def test_without_a_target_the_limits_stay() -> None:
    _, simulation = run()
    stats = simulation.scheduler.stats()
    assert (stats.adaptive_rows, stats.adaptive_tokens) == (128, 512)
    assert stats.adaptive_changes_total == {"raised": 0, "lowered": 0}
