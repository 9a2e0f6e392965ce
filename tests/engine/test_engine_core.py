"""The loop in-process: steps, failures of rows and of steps, two steps in flight."""

from __future__ import annotations

import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.plan import StepPlan, StepResult
from octavo.core.request import FinishReason, Output, Refused, Submission
from octavo.core.scheduler import Scheduler
from octavo.engine.engine_core import MAX_FAILED_STEPS, EngineCore
from octavo.engine.errors import EngineFatal
from support.engine_tools import submission
from support.fault_executors import (
    BAD_ROW,
    NO_MEMORY,
    RAISES,
    VOCAB,
    FaultyExecutor,
    HashExecutor,
    TwoInFlight,
    next_token,
)


class StepClock:
    """Moves by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 0.001
        return self.time


def make_core(executor: HashExecutor, **limits: int) -> tuple[EngineCore, list[list[str]]]:
    marks: list[list[str]] = []
    values = {"num_blocks": 64, "max_model_len": 512, "block_size": 4, **limits}
    core = EngineCore(
        Scheduler(SchedulerConfig(**values)),
        executor,
        StepClock(),
        vocab_size=VOCAB,
        mark=lambda ids: marks.append(list(ids)),
    )
    return core, marks


def run(core: EngineCore) -> dict[str, dict[int, Output]]:
    """Steps until idle; outputs merged by request and choice."""
    merged: dict[str, dict[int, Output]] = {}
    for _ in range(10_000):
        if not core.has_work:
            return merged
        for output in core.step():
            choices = merged.setdefault(output.request_id, {})
            earlier = choices.get(output.choice)
            if earlier is None:
                choices[output.choice] = output
                continue
            earlier.tokens += output.tokens
            earlier.finish_reason = output.finish_reason
            earlier.error, earlier.error_code = output.error, output.error_code
    raise AssertionError("the engine does not come to rest")


def expected(prompt: list[int], count: int, seed: int, choice: int, greedy: bool) -> list[int]:
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history, seed, choice, greedy))
    return history[len(prompt) :]


@pytest.mark.parametrize("kind", [HashExecutor, TwoInFlight])
def test_tokens_are_those_of_each_request_alone(kind: type[HashExecutor]) -> None:
    """In a crowd, with preemption, chunks and shared prefixes, one and two steps in flight."""
    executor = kind()
    core, marks = make_core(executor, max_num_batched_tokens=24, max_num_seqs=8)
    shared = list(range(40))
    requests = [
        submission(f"r{i}", [*shared[: 4 * i], i], seed=i, n=1 + i % 3, temperature=float(i % 2))
        for i in range(1, 10)
    ]
    for request in requests:
        core.add(request)
    results = run(core)
    for request in requests:
        greedy = request.params.greedy
        for choice in range(request.params.n):
            output = results[request.request_id][choice]
            assert output.tokens == expected(request.prompt, 16, request.seed, choice, greedy)
            assert output.finish_reason is FinishReason.LENGTH
    assert marks[-1] == []
    assert {request_id for ids in marks for request_id in ids} == {r.request_id for r in requests}


def test_the_executor_learns_of_every_end() -> None:
    executor = TwoInFlight()
    core, _ = make_core(executor)
    for i in range(5):
        core.add(submission(f"r{i}", [i, i + 1], max_tokens=3 + i))
    run(core)
    core.add(submission("later", [9], max_tokens=1))
    run(core)
    assert len(executor.sequences) <= 1, "only the last may still wait to be named in a plan"


def test_b08_a_failed_row_ends_its_request_alone() -> None:
    core, _ = make_core(FaultyExecutor())
    core.add(submission("good", [1, 2]))
    core.add(submission("bad", [3, BAD_ROW]))
    results = run(core)
    assert results["bad"][0].error_code == "row_failed"
    assert "not finite" in str(results["bad"][0].error)
    assert results["good"][0].tokens == expected([1, 2], 16, 1, 0, True)


@pytest.mark.parametrize("fault", [RAISES, NO_MEMORY])
def test_d01b_a_step_that_raises_fails_its_rows_and_the_engine_goes_on(fault: int) -> None:
    """For want of memory too (C12)."""
    executor = FaultyExecutor()
    core, _ = make_core(executor, max_num_seqs=2)
    core.add(submission("beside", [1]))
    core.add(submission("bad", [3, fault]))
    core.add(submission("after", [2]))
    results = run(core)
    for name in ("beside", "bad"):
        assert results[name][0].finish_reason is FinishReason.ERROR
        assert results[name][0].error_code == "engine_step_failed"
    assert results["after"][0].tokens == expected([2], 16, 1, 0, True)
    assert not core.has_work
    states = [record.state for record in core.recorder.read()]
    assert states[0] == "failed" and states[-1] == "done"
    stats = core.scheduler.stats()
    assert stats.running == stats.waiting == stats.blocks_held == 0


def test_an_executor_that_fails_again_and_again_is_fatal() -> None:
    core, _ = make_core(FaultyExecutor(), max_num_seqs=1)
    for i in range(MAX_FAILED_STEPS + 1):
        core.add(submission(f"r{i}", [RAISES, i]))
    with pytest.raises(EngineFatal, match="8 steps in a row failed"):
        run(core)


class LateFailure(TwoInFlight):
    """Raises when the third step is collected."""

    collected = 0

    def collect(self, handle: StepResult) -> StepResult:
        self.collected += 1
        if self.collected == 3:
            raise RuntimeError("lost on the way")
        return handle


def test_a_step_lost_with_another_in_flight_fails_once_and_leaves_nothing() -> None:
    core, _ = make_core(LateFailure())
    core.add(submission("hit", [1]))
    results = run(core)
    assert results["hit"][0].error_code == "engine_step_failed"
    assert len(results["hit"][0].tokens) == 2
    core.add(submission("next", [2]))
    assert run(core)["next"][0].tokens == expected([2], 16, 1, 0, True)
    assert core.scheduler.stats().blocks_held == 0


class EndsOnce(HashExecutor):
    """Fails before it has read the plan; insists on hearing of every end."""

    failing = False

    def submit(self, plan: StepPlan) -> StepResult:
        if self.failing and plan.rows:
            self.failing = False
            raise RuntimeError("not now")
        return super().submit(plan)


def test_ends_named_in_a_failed_step_are_named_again() -> None:
    executor = EndsOnce()
    core, _ = make_core(executor, max_num_seqs=1)
    core.add(submission("first", [1], max_tokens=2))
    core.add(submission("second", [2], max_tokens=2))
    core.add(submission("third", [3], max_tokens=2))
    done: set[str] = set()
    while core.has_work:
        for output in core.step():
            if output.finish_reason is not None:
                done.add(output.request_id)
                executor.failing = output.request_id == "first"
    core.add(submission("fourth", [4], max_tokens=2))
    run(core)
    assert done == {"first", "second", "third"}
    assert len(executor.sequences) <= 1


def test_a13_bad_submissions_are_refused_before_any_step() -> None:
    core, _ = make_core(HashExecutor())
    for bad in (
        submission("huge", [1, VOCAB]),
        submission("negative", [-1]),
        submission("n", [1], n=1000),
        submission("stop", [1], stop_token_ids=(VOCAB + 7,)),
        Submission("long", [1] * 600, submission("x", [1]).params, 1),
        submission("empty", []),
    ):
        with pytest.raises(Refused):
            core.add(bad)
    assert not core.has_work
    core.drain()
    with pytest.raises(Refused) as refused:
        core.add(submission("late", [1]))
    assert refused.value.code == "draining"


def test_abort_ends_one_choice_or_all() -> None:
    core, _ = make_core(HashExecutor())
    core.add(submission("r", [1], n=3, max_tokens=100))
    core.step()
    core.step()
    ended = core.abort("r", 1)
    assert [(output.choice, output.finish_reason) for output in ended] == [(1, FinishReason.ABORT)]
    assert core.abort("r", 1) == []
    assert core.abort("unknown") == []
    ended = core.abort("r")
    assert sorted(output.choice for output in ended) == [0, 2]
    assert run(core) == {}
    assert core.scheduler.stats().blocks_held == 0
