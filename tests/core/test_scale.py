"""What holds at size: shared prompts, long queues, and a real trace of arrivals."""

from __future__ import annotations

import csv
import time
from datetime import datetime
from pathlib import Path

import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.invariants import check
from octavo.core.request import Output, ServiceClass
from octavo.core.scheduler import Scheduler
from octavo.sim.null_executor import NullExecutor
from support.core_driver import submission

TRACE = Path(__file__).parents[3] / "shared/data/traces/AzureLLMInferenceTrace_conv.csv"


def step(scheduler: Scheduler, executor: NullExecutor, now: float = 0.0) -> list[Output]:
    plan = scheduler.schedule(now)
    return scheduler.commit(plan, executor.collect(executor.submit(plan)), now)


def test_a_thousand_identical_prompts_hold_a_hundredth_of_the_blocks() -> None:
    requests, length, size = 1000, 2048, 16
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=3000,
            block_size=size,
            max_model_len=4096,
            max_num_seqs=requests,
            max_num_batched_tokens=4096,
        )
    )
    executor = NullExecutor()
    for i in range(requests):
        scheduler.add(submission(f"r{i}", list(range(length)), seed=i, max_tokens=2))
    held = 0
    while scheduler.has_work():
        step(scheduler, executor)
        held = max(held, scheduler.stats().blocks_held)
    separate = requests * -(-(length + 1) // size)
    assert held <= separate / 100
    stats = scheduler.stats()
    assert stats.generated_tokens_total == 2 * requests
    # Each request's first output is fed back once; the rest are prompt tokens.
    assert stats.computed_tokens_total - requests <= length + 999
    check(scheduler)


def queue_of(waiting: int, same: bool, mixed: bool = False) -> tuple[Scheduler, NullExecutor]:
    """Sixty-four sequences decode, all rows are taken, and `waiting` requests wait."""
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=4096,
            max_model_len=4096,
            max_num_seqs=64,
            max_num_batched_tokens=512,
            max_waiting_requests=100_000,
        )
    )
    executor = NullExecutor()
    for i in range(64):
        whose = ServiceClass.BATCH if mixed and i % 2 else ServiceClass.REALTIME
        scheduler.add(submission(f"run{i}", [i] * 4, seed=i, max_tokens=500, service_class=whose))
    step(scheduler, executor)
    for i in range(waiting):
        prompt = [7] * 40 if same else [i, *range(39)]
        whose = ServiceClass.BATCH if mixed and i % 2 else ServiceClass.REALTIME
        scheduler.add(
            submission(f"wait{i}", prompt, seed=i, max_tokens=20, arrival=1.0, service_class=whose)
        )
    return scheduler, executor


def inner_operations(waiting: int, same: bool, free_rows: bool, mixed: bool = False) -> int:
    """Queue entries touched and waiting sequences examined in fifty steps."""
    scheduler, executor = queue_of(waiting, same, mixed)
    if free_rows:
        for i in range(8):
            scheduler.abort(f"run{i}")
    books = scheduler.books

    def work() -> int:
        return books.queue.touched + books.batch_queue.touched + books.counters.looks

    before = work()
    for _ in range(50 if not free_rows else 10):
        step(scheduler, executor)
    return work() - before


@pytest.mark.parametrize("free_rows", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_the_work_of_a_step_does_not_grow_with_the_queue(same: bool, free_rows: bool) -> None:
    few, many = (inner_operations(n, same, free_rows) for n in (20, 20_000))
    assert 0 < many <= 1.5 * few


@pytest.mark.parametrize("free_rows", [False, True])
def test_nor_does_it_where_both_classes_wait(free_rows: bool) -> None:
    """Batch rows make way and are queued anew; rows of the class are let in at its expense."""
    few, many = (inner_operations(n, False, free_rows, mixed=True) for n in (200, 20_000))
    assert 0 < many <= 1.5 * few


def test_the_time_of_a_step_does_not_grow_with_the_queue() -> None:
    """Processor time, the best of several runs, so that a busy machine does not matter much."""

    def best(waiting: int) -> float:
        scheduler, executor = queue_of(waiting, same=False)
        times = []
        for _ in range(8):
            begin = time.process_time()
            for _ in range(20):
                step(scheduler, executor)
            times.append(time.process_time() - begin)
        return min(times)

    assert best(20_000) <= 1.5 * best(20)


def test_a_prefix_in_flight_parks_a_bounded_number() -> None:
    """20,000 requests that all wait for one prefix: each step looks at a few of them."""
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=4096,
            max_model_len=8192,
            max_num_seqs=64,
            max_num_batched_tokens=512,
            max_waiting_requests=100_000,
            max_waiting_tokens=10**9,
        )
    )
    executor = NullExecutor(max_in_flight=2)
    prompt = list(range(600))
    for i in range(20_000):
        scheduler.add(submission(f"r{i}", prompt, seed=i, max_tokens=1))
    looks = []
    flying = []
    for _ in range(12):
        before = scheduler.books.counters.looks
        plan = scheduler.schedule(0.0)
        looks.append(scheduler.books.counters.looks - before)
        if plan.rows:
            flying.append((plan, executor.submit(plan)))
        if len(flying) > 1 or not plan.rows:
            flown, handle = flying.pop(0)
            scheduler.commit(flown, executor.collect(handle), 0.0)
    assert max(looks) <= 64 + 16
    assert scheduler.stats().generated_tokens_total >= 200


def arrivals(limit: int) -> list[tuple[float, int, int]]:
    """(seconds, prompt tokens, output tokens) of the trace's first requests."""
    with TRACE.open() as file:
        rows = [
            (datetime.fromisoformat(r["TIMESTAMP"][:26]), r["ContextTokens"], r["GeneratedTokens"])
            for r, _ in zip(csv.DictReader(file), range(limit), strict=False)
        ]
    begin = rows[0][0]
    return [((t - begin).total_seconds(), int(p), max(1, int(o))) for t, p, o in rows]


def replay(limit: int, num_blocks: int = 8192) -> tuple[float, Scheduler]:
    """Run the trace at 30 ms a step; the filled share of allocated slots, and the scheduler."""
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=num_blocks,
            max_model_len=16_384,
            max_num_seqs=256,
            max_num_batched_tokens=4096,
        )
    )
    executor = NullExecutor()
    pending = arrivals(limit)[::-1]
    now, steps, filled, allocated = 0.0, 0, 0, 0
    while pending or scheduler.has_work():
        while pending and pending[-1][0] <= now:
            at, prompt, output = pending.pop()
            name = len(pending)
            tokens = [(name * 31 + i) % 32_000 for i in range(prompt)]
            scheduler.add(submission(f"t{name}", tokens, seed=name, max_tokens=output, arrival=at))
        if not scheduler.has_work():
            now = pending[-1][0]
            continue
        step(scheduler, executor, now)
        now += 0.03
        steps += 1
        if steps % 20 == 0:
            stats = scheduler.stats()
            filled += stats.slots_filled
            allocated += stats.blocks_held * stats.block_size
    return filled / allocated, scheduler


@pytest.mark.skipif(not TRACE.exists(), reason="the Azure conversation trace is not here")
def test_the_azure_conversation_trace_fills_its_slots() -> None:
    share, scheduler = replay(limit=1000)
    assert share > 0.96
    assert scheduler.stats().finished_total == {"length": 1000}
