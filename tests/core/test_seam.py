"""The seam with two steps in flight: every field of plan and result, and the rules between them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from octavo.core.params import SamplingParams
from octavo.core.plan import (
    PENDING,
    Admitted,
    Copy,
    FinishedLoad,
    Load,
    Row,
    RowResult,
    StepPlan,
    StepResult,
    Store,
    Want,
)
from octavo.core.request import FinishReason
from octavo.sim.null_executor import NullExecutor, SeamError
from support.core_driver import EOS, Driver, small_pool, submission
from support.core_fuzz import Optimist
from support.shadow_tier import ShadowTier

RESERVED = {"mask"}
"""Fields that the scheduler leaves empty until structured output exists."""


def test_the_scheduler_uses_every_field_of_a_plan_with_two_steps_in_flight() -> None:
    driver = Driver(small_pool(num_blocks=20), lag=True, tier=ShadowTier(0))
    driver.scheduler.books.lengths = Optimist()
    driver.add(submission("scored", [1, 2, 3, 4, 5] * 4, prompt_logprobs=0, max_tokens=9))
    driver.add(submission("forked", [6] * 7, n=4, max_tokens=12, adapter="lora"))
    driver.add(submission("again", [6] * 8, max_tokens=20))
    driver.add(submission("more", [7] * 8, max_tokens=30, seed=9))
    driver.run()
    for pool in driver.scheduler.books.tables.pools:
        pool.reset_cache()
    driver.add(submission("from the tier", [7] * 8, max_tokens=1))
    driver.run()
    driver.verify()
    plans = driver.plans
    rows = [row for plan in plans for row in plan.rows]
    used: set[str] = set()
    for thing in (*plans, *rows):
        for field in fields(thing):
            if getattr(thing, field.name) not in (None, 0, [], Want.NONE):
                used.add(field.name)
    names = {field.name for kind in (StepPlan, Row) for field in fields(kind)}
    assert used == names - RESERVED
    assert any(PENDING in row.tokens for row in rows)
    assert any(row.write_from > row.start for row in rows)
    assert any(0 < row.logits_from < len(row.tokens) for row in rows)
    assert any(len(new.history) > new.prompt_len for plan in plans for new in plan.admitted)


def test_overrun_past_a_stop_is_discarded() -> None:
    driver = Driver(
        small_pool(eos_token_ids=(EOS,)), lag=True, source=lambda s, c, p: EOS if p == 5 else 1
    )
    driver.add(submission("a", [1, 2, 3], max_tokens=20))
    driver.run()
    driver.verify()
    assert driver.collected["a", 0] == [1, 1, EOS]
    # One more row was in flight when the stop was found; its token is nowhere.
    assert sum(len(plan.rows) for plan in driver.plans) == 4
    assert driver.scheduler.counters.generated_tokens == 3


def test_blocks_in_flight_are_not_reused() -> None:
    driver = Driver(small_pool(num_blocks=4), lag=True)
    driver.add(submission("a", [1] * 12, max_tokens=9))
    driver.step()
    driver.abort("a")
    assert driver.scheduler.stats().blocks_held == 3
    driver.add(submission("b", [2] * 12, max_tokens=2))
    driver.step()
    assert driver.scheduler.stats().blocks_held == 0
    driver.run()
    driver.verify()
    assert driver.finals["a", 0].finish_reason == FinishReason.ABORT


def test_a_third_step_in_flight_and_a_wrong_order_are_errors() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1] * 3, max_tokens=9))
    scheduler = driver.scheduler
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert second.rows[0].tokens == [PENDING]
    with pytest.raises(RuntimeError, match="2 steps are in flight"):
        scheduler.schedule(0.0)
    with pytest.raises(RuntimeError, match="not the oldest"):
        scheduler.commit(second, StepResult(rows=[RowResult([1])]), 0.0)
    scheduler.commit(first, StepResult(rows=[RowResult([1])]), 0.0)


def test_an_empty_plan_while_a_step_is_in_flight_is_no_stall() -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1] * 3, max_tokens=1))
    scheduler = driver.scheduler
    plan = scheduler.schedule(0.0)
    assert not scheduler.schedule(0.0).rows
    assert scheduler.resolve_stall(0.0) == []
    scheduler.commit(plan, StepResult(rows=[RowResult([5])]), 0.0)
    assert not scheduler.has_work()


@pytest.mark.parametrize("rows", [[], [RowResult()]])
def test_an_answer_without_a_token_fails_the_request(rows: list[RowResult]) -> None:
    driver = Driver(small_pool())
    driver.add(submission("a", [1] * 3, max_tokens=1))
    plan = driver.scheduler.schedule(0.0)
    (output,) = driver.scheduler.commit(plan, StepResult(rows=rows), 0.0)
    assert output.error == "the executor returned no token for a row that samples"


def test_several_tokens_of_one_row_are_taken_up_to_a_stop() -> None:
    driver = Driver(small_pool(eos_token_ids=(EOS,)))
    driver.add(submission("a", [1] * 3, max_tokens=9))
    plan = driver.scheduler.schedule(0.0)
    result = StepResult(rows=[RowResult([4, 5])])
    (output,) = driver.scheduler.commit(plan, result, 0.0)
    assert output.tokens == [4, 5]
    plan = driver.scheduler.schedule(0.0)
    assert plan.rows[0].tokens == [4, 5]
    (output,) = driver.scheduler.commit(plan, StepResult(rows=[RowResult([6, EOS, 8])]), 0.0)
    assert (output.tokens, output.finish_reason) == ([6, EOS], FinishReason.STOP)


def admitted(rid: int = 1) -> Admitted:
    return Admitted(rid, SamplingParams(logprobs=0), 3, 0, 3, [1, 2, 3])


def row(rid: int = 1, **changes: object) -> Row:
    values: dict[str, object] = {
        "rid": rid,
        "start": 0,
        "tokens": [1, 2, 3],
        "tables": ([0],),
        "write_from": 0,
        "logits_from": 2,
        "want": Want.SAMPLE,
    }
    return Row(**(values | changes))  # type: ignore[arg-type]


def test_the_null_executor_answers_every_want() -> None:
    executor = NullExecutor(lambda seed, choice, position: 5, max_in_flight=2)
    everything = Want.SAMPLE | Want.PROMPT_LOGPROBS | Want.POOL
    one = executor.submit(
        StepPlan(
            0,
            rows=[row(want=everything, logits_from=0, next_token=9, mask=bytes([0b1000_0001]))],
            admitted=[admitted()],
            copies=[Copy(0, 1, 2)],
            transfers=[Store(0, 1, b"a"), Load(4, 0, 1, b"b")],
        )
    )
    two = executor.submit(StepPlan(1, rows=[row(start=3, tokens=[PENDING], logits_from=0)]))
    first, second = executor.collect(one), executor.collect(two)
    answer = first.rows[0]
    assert answer.tokens == [7]
    assert answer.logprobs is not None
    assert answer.prompt_logprobs is not None
    assert [entry.token for entry in answer.prompt_logprobs] == [2, 3, 9]
    assert answer.pooled == [6.0, 3.0]
    assert first.finished_transfers == [FinishedLoad(4, True)]
    assert second.rows[0].tokens == [5]
    assert executor.known == 1


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        (StepPlan(0), "empty plan"),
        (StepPlan(0, rows=[row(2)]), "never admitted"),
        (StepPlan(0, rows=[row()], ended=[2]), "never admitted"),
        (StepPlan(0, rows=[row()], admitted=[admitted()]), "admitted twice"),
        (StepPlan(0, rows=[row(tokens=[1, 2, 4])]), "differ"),
        (StepPlan(0, rows=[row(start=1)]), "differ"),
        (StepPlan(0, rows=[row(mask=bytes(2))]), "allows no token"),
    ],
)
def test_the_null_executor_finds_plans_that_break_the_rules(plan: StepPlan, what: str) -> None:
    executor = NullExecutor()
    executor.collect(executor.submit(StepPlan(7, rows=[row()], admitted=[admitted()])))
    with pytest.raises(SeamError, match=what):
        executor.submit(plan)


def test_the_null_executor_keeps_to_its_number_in_flight_and_to_order() -> None:
    executor = NullExecutor()
    executor.submit(StepPlan(0, rows=[row()], admitted=[admitted()]))
    with pytest.raises(SeamError, match="in flight"):
        executor.submit(StepPlan(1, rows=[row(start=3, tokens=[PENDING])]))
    with pytest.raises(SeamError, match="oldest"):
        executor.collect(1)
