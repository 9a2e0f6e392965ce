"""How many steps a second the core plans and commits, with few and with many requests waiting.

Owns: that measurement, with an executor that computes nothing.
Does not know: models.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from octavo.core.config import SchedulerConfig
from octavo.core.params import SamplingParams
from octavo.core.request import Submission
from octavo.core.scheduler import Scheduler
from octavo.sim.null_executor import NullExecutor, hashed_tokens

RUNNING = 64
PROMPT = 64
OUTPUT = 4096
BLOCK = 16


@dataclass(frozen=True, slots=True)
class StepCost:
    """`step_us`: the median step in microseconds, planning and committing, RUNNING rows each."""

    waiting: int
    running: int
    step_us: float

    @property
    def steps_per_second(self) -> float:
        return 1e6 / self.step_us


def measure(waiting: int, steps: int = 400) -> StepCost:
    """Steps of RUNNING sequences that decode while `waiting` requests cannot start."""
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=RUNNING * (PROMPT + OUTPUT) // BLOCK + RUNNING,
            max_model_len=PROMPT + OUTPUT,
            block_size=BLOCK,
            max_num_seqs=RUNNING,
            max_num_batched_tokens=8192,
            max_waiting_requests=waiting + RUNNING,
            max_waiting_tokens=(waiting + RUNNING) * PROMPT,
        )
    )
    executor = NullExecutor(hashed_tokens(32_000))
    params = SamplingParams(max_tokens=OUTPUT, ignore_eos=True)
    for number in range(waiting + RUNNING):
        prompt = [(number * 31 + position * 7) % 32_000 for position in range(PROMPT)]
        scheduler.add(Submission(f"r{number}", prompt, params, seed=number))
    seconds = []
    for step in range(steps + 10):
        begun = time.perf_counter()
        plan = scheduler.schedule(float(step))
        planned = time.perf_counter()
        result = executor.collect(executor.submit(plan))
        computed = time.perf_counter()
        scheduler.commit(plan, result, float(step))
        seconds.append(time.perf_counter() - computed + planned - begun)
    # The first steps take in the prompts.
    return StepCost(scheduler.waiting, len(plan.rows), statistics.median(seconds[10:]) * 1e6)
