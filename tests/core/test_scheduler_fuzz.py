"""Random scenarios: invariants after every step, no stall, every request ends exactly once, the
tokens of an undisturbed run, the same event log for the same seed.

The bulk is driven by seeded randomness, in eight shares that together plan at least 200,000 steps
and can run side by side; hypothesis looks for small failing cases besides.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.events import EventKind
from octavo.core.request import ServiceClass
from support.core_driver import Driver, small_pool, submission
from support.core_fuzz import Fuzz, Optimist

TOTAL_STEPS = 200_000
SHARES = 8
STEPS_EACH = 400


@pytest.mark.parametrize("share", range(SHARES))
def test_fuzz_bulk(share: int) -> None:
    planned = 0
    seen: dict[str, int] = {}
    scenario = 0
    while planned < TOTAL_STEPS / SHARES:
        fuzz = Fuzz(seed=share + SHARES * scenario)
        planned += fuzz.run(STEPS_EACH)
        scenario += 1
        for event in fuzz.driver.log:
            seen[event.kind.value] = seen.get(event.kind.value, 0) + 1
            if event.detail:
                seen[event.detail] = seen.get(event.detail, 0) + 1
        seen["copies"] = seen.get("copies", 0) + fuzz.driver.scheduler.counters.copies
        late = sum(one.error_code == "deadline_exceeded" for one in fuzz.driver.finals.values())
        seen["late"] = seen.get("late", 0) + late
    assert planned >= TOTAL_STEPS / SHARES
    # A fuzzer that never gets there proves nothing.
    for what, least in {
        "blocks": 50,
        "class": 50,
        "parked": 20,
        "forked": 200,
        "copies": 100,
        "abort": 100,
        "error": 5,
        "stop": 100,
        "length": 1000,
        "queue_full": 100,
        "queue_delay": 20,
        "deadline_unreachable": 20,
        "late": 50,
        "request_too_large": 100,
    }.items():
        assert seen.get(what, 0) >= least, (what, seen)


@pytest.mark.parametrize("share", range(4))
def test_fuzz_windows(share: int) -> None:
    planned = hits = 0
    seen: dict[str, int] = {}
    scenario = 0
    while planned < 15_000:
        fuzz = Fuzz(seed=share + 4 * scenario, windows=True)
        planned += fuzz.run(STEPS_EACH)
        scenario += 1
        for event in fuzz.driver.log:
            seen[event.kind.value] = seen.get(event.kind.value, 0) + 1
            hits += event.kind is EventKind.ADMITTED and event.value > 0
    assert hits >= 300, hits
    for what, least in {"preempted": 50, "parked": 50, "forked": 200}.items():
        assert seen.get(what, 0) >= least, (what, seen)


@pytest.mark.parametrize("seed", range(12))
def test_a_window_that_nobody_outgrows_changes_nothing(seed: int) -> None:
    logs = []
    for window in (0, 10_000):
        fuzz = Fuzz(seed, group=window)
        fuzz.run(200)
        logs.append(fuzz.driver.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 20


@pytest.mark.parametrize("seed", [3, 11, 12])
def test_same_seed_same_event_log(seed: int) -> None:
    logs = []
    for _ in range(2):
        fuzz = Fuzz(seed)
        fuzz.run(200)
        logs.append(fuzz.driver.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 20


requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 2), min_size=1, max_size=14),
        "n": st.integers(1, 3),
        "max_tokens": st.integers(0, 12),
        "priority": st.integers(-1, 1),
        "service_class": st.sampled_from(ServiceClass),
        "alone": st.booleans(),
        "prompt_logprobs": st.sampled_from([None, 0]),
        "wait": st.integers(0, 4),
        "abort_after": st.sampled_from([None, None, 0, 1, 3]),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(requests, max_size=7),
    st.fixed_dictionaries(
        {
            "num_blocks": st.integers(2, 12),
            "block_size": st.integers(1, 4),
            "max_num_seqs": st.integers(1, 4),
            "max_num_batched_tokens": st.integers(1, 12),
            "enable_prefix_caching": st.booleans(),
            "policy": st.sampled_from(["fcfs", "priority", "fair"]),
            "batch_share": st.sampled_from([0.0, 0.05, 0.5]),
        }
    ),
    st.booleans(),
    st.booleans(),
    st.sets(st.integers(0, 20), max_size=2),
)
def test_fuzz_small_cases(
    specs: list[dict[str, object]],
    limits: dict[str, object],
    lag: bool,
    careless: bool,
    failing_steps: set[int],
) -> None:
    driver = Driver(
        small_pool(max_model_len=32, **limits),
        lag=lag,
        fail=lambda plan, row: (
            "fails" if plan.step in failing_steps and row is plan.rows[-1] else None
        ),
    )
    if careless:
        driver.scheduler.books.lengths = Optimist()
    for i, spec in enumerate(specs):
        options = dict(spec)
        wait, abort_after = options.pop("wait"), options.pop("abort_after")
        prompt = options.pop("prompt")
        request = submission(f"r{i}", prompt, seed=i, arrival=driver.now, **options)  # type: ignore[arg-type]
        if driver.try_add(request) and abort_after is not None:
            for _ in range(abort_after):  # type: ignore[call-overload]
                driver.step()
            driver.abort(f"r{i}", choice=0)
        for _ in range(wait):  # type: ignore[call-overload]
            driver.step()
    driver.run(limit=3000)
    driver.verify()
