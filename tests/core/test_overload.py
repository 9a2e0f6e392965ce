"""Three times more load than there is capacity: what is refused, with which Retry-After, and what
the capacity is spent on. The clock is simulated; nothing here depends on the machine."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace

import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.request import FinishReason, Refused, Submission
from octavo.core.throughput import whole_seconds
from support.overload import BASE, EOS, PER_TOKEN, Engine, Fate, Offer

ROWS = 16
CAPACITY = ROWS / (80 * (BASE + PER_TOKEN * ROWS) + 150 * PER_TOKEN * ROWS)
"""Requests a second with all rows full: mean outputs of 80, mean prompts of 150, whose prefill
slows down all rows."""


def config(**changes: object) -> SchedulerConfig:
    values: dict[str, object] = {
        "num_blocks": 600, "max_model_len": 1024, "max_num_seqs": ROWS,
        "max_num_batched_tokens": 256, "eos_token_ids": (EOS,),
    }  # fmt: skip
    return SchedulerConfig(**(values | changes))  # type: ignore[arg-type]


def run(engine: Engine, offer: Offer, probe_every: int = 0) -> list[tuple[Refused, float]]:
    """Offers the load and steps to the end; for every so many refusals, what was said and how long
    it took in truth."""
    probes = []
    refusals = 0
    for submission in offer.requests():
        engine.until(submission.arrival)
        refused = engine.offer(submission)
        if refused is not None:
            refusals += 1
            if probe_every and refusals % probe_every == 0:
                probes.append((refused, seconds_until_taken(engine, submission)))
    engine.finish()
    return probes


def seconds_until_taken(engine: Engine, submission: Submission) -> float:
    """When the same request would be taken if nobody else came: the engine is copied and run on."""
    twin = deepcopy(engine)
    began = twin.now
    while True:
        twin.step()
        again = replace(submission, request_id="again", arrival=twin.now)
        if twin.offer(again) is None:
            return twin.now - began


def within(fate: Fate) -> bool:
    """Its answer was complete in the time that it asked for."""
    deadline = fate.submission.deadline
    return fate.reason is FinishReason.STOP and (
        deadline is None or (fate.ended is not None and fate.ended <= deadline)
    )


def offered(factor: float, seconds: float = 60.0, **changes: object) -> Offer:
    return Offer(factor * CAPACITY, seconds, **changes)  # type: ignore[arg-type]


def test_capacity_is_what_the_formula_says() -> None:
    """Else "three times" would mean nothing: 0.9 of it is served, and 1.2 of it is not."""
    light, heavy = Engine(config()), Engine(config())
    run(light, offered(0.9))
    assert light.now < 66
    run(heavy, offered(1.2))
    assert heavy.now > 68


def test_three_times_the_capacity_with_deadlines() -> None:
    engine = Engine(config())
    run(engine, offered(3, timeouts=(6.0, 10.0, 20.0)))
    fates = list(engine.fates.values())
    spent = sum(fate.seconds for fate in fates)
    assert spent == pytest.approx(engine.busy)
    assert engine.busy > 0.98 * engine.now, "there was always something to do"
    assert sum(fate.seconds for fate in fates if within(fate)) > 0.9 * spent
    # Two thirds are too many, and nearly all of those are told so at once.
    late = [fate for fate in fates if fate.error_code == "deadline_exceeded"]
    refused = [fate for fate in fates if fate.refused]
    assert {fate.refused for fate in refused} == {"deadline_unreachable"}
    assert len(late) < 0.03 * len(fates) and len(refused) > 0.5 * len(fates)
    # A deadline is noticed by the first step that is planned after it, and by then at the latest.
    longest = BASE + PER_TOKEN * engine.config.max_num_batched_tokens
    for fate in late:
        assert fate.ended is not None and fate.submission.deadline is not None
        assert 0 <= fate.ended - fate.submission.deadline <= 2 * longest


def test_three_times_the_capacity_with_a_bound_on_the_delay() -> None:
    engine = Engine(config(max_queue_delay=2.0))
    run(engine, offered(3))
    fates = list(engine.fates.values())
    assert engine.busy > 0.98 * engine.now
    taken = [fate for fate in fates if not fate.refused]
    assert {fate.refused for fate in fates} == {"", "queue_delay"}
    assert all(fate.reason is FinishReason.STOP for fate in taken)
    waits = sorted(fate.first - fate.submission.arrival for fate in taken if fate.first)
    assert waits[int(0.95 * len(waits))] < 1.5 * 2.0 and waits[len(waits) // 2] > 1.0
    # What is taken is as much as can be done: nobody is sent away for nothing.
    assert len(taken) > 0.9 * CAPACITY * 60


def test_a_light_load_is_never_refused() -> None:
    engine = Engine(config(max_queue_delay=1.0))
    run(engine, offered(0.5, timeouts=(None, 8.0)))
    assert not any(fate.refused for fate in engine.fates.values())


@pytest.mark.parametrize("timeouts", [(5.0, 40.0), (8.0, 20.0, None)])
def test_retry_after_is_right_within_a_factor_of_two(timeouts: tuple[float | None, ...]) -> None:
    """Patient requests fill the queue; the impatient are told when there will be room for them."""
    engine = Engine(config(max_queue_delay=30.0))
    probes = run(engine, offered(3, 32.0, timeouts=timeouts), probe_every=50)
    assert len(probes) >= 4
    for refused, truth in probes:
        assert refused.retry_after is not None
        assert whole_seconds(truth) / 2 <= refused.retry_after <= 2 * whole_seconds(truth)
    assert max(truth for _, truth in probes) > 8


def test_retry_after_of_a_full_queue_is_right_within_a_factor_of_two() -> None:
    engine = Engine(config(max_waiting_requests=64))
    probes = run(engine, offered(3, 30.0, prompts=(100, 120)), probe_every=60)
    assert len(probes) >= 4
    for refused, truth in probes:
        assert refused.code == "queue_full" and refused.retry_after is not None
        assert whole_seconds(truth) / 2 <= refused.retry_after <= 2 * whole_seconds(truth)


def test_refusals_have_the_numbers() -> None:
    engine = Engine(config(max_queue_delay=2.0))
    said: dict[str, Refused] = {}
    for submission in offered(3, 20.0, timeouts=(None, 4.0)).requests():
        engine.until(submission.arrival)
        if (refused := engine.offer(submission)) is not None:
            said[refused.code] = refused
    delay, deadline = said["queue_delay"], said["deadline_unreachable"]
    assert re.match(
        r"\d+ requests are waiting, and this one would wait about \d+\.\d s to begin; the limit is "
        rf"2 s \(--max-queue-delay\)\. Try again in {delay.retry_after:.0f} s\.",
        str(delay),
    )
    assert re.search(
        r"have its first token after \d+\.\d s and end after \d+\.\d s; its deadline is in 4\.0 s"
        rf"\. Try again in {deadline.retry_after:.0f} s, or give it more time\.",
        str(deadline),
    )
    assert deadline.param == "timeout"
