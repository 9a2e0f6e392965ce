"""The pure parts of the client: merging, resumption, suspicion, budget, totals, step memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.params import SamplingParams
from octavo.core.plan import TokenLogprob
from octavo.core.request import FinishReason, Output, Refused, Submission
from octavo.engine.budget import RestartBudget
from octavo.engine.live import LiveRequest
from octavo.engine.messages import EngineStats
from octavo.engine.poison import Suspicion
from octavo.engine.recorder import Recorder, StepRecord, dump
from octavo.engine.step_memory import ID_BYTES, StepMemory
from octavo.engine.totals import Totals


def submission(n: int = 1, **params: object) -> Submission:
    return Submission("r", [1, 2], SamplingParams(n=n, **params), seed=7)  # type: ignore[arg-type]


def logprob(token: int) -> TokenLogprob:
    return TokenLogprob(token, -0.5, 1, [(token, -0.5)])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99), st.booleans()), max_size=40))
async def test_d15_merging_keeps_every_token_in_order(
    events: list[tuple[int, int, bool]],
) -> None:
    """A slow reader gets the same tokens as a quick one, and one pending output per choice."""
    live = LiveRequest(submission(n=3))
    sent: dict[int, list[int]] = {0: [], 1: [], 2: []}
    read: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for choice, token, reads in events:
        live.accept(Output("r", choice, [token], logprobs=[logprob(token)]))
        sent[choice].append(token)
        if reads:
            await take(live, read)
        assert live.buffered <= 3 * sum(len(tokens) for tokens in sent.values())
    for choice in range(3):
        live.accept(Output("r", choice, finish_reason=FinishReason.LENGTH))
    while await take(live, read):
        pass
    assert read == sent
    assert live.buffered == 0
    assert live.finished


async def take(live: LiveRequest, read: dict[int, list[int]]) -> bool:
    output = await live.next()
    if output is None:
        return False
    assert [entry.token for entry in output.logprobs or []] == output.tokens
    read[output.choice] += output.tokens
    return True


async def test_resubmission_tells_how_far_each_choice_came() -> None:
    live = LiveRequest(submission(n=3, prompt_logprobs=1))
    assert live.submission_now().resumed == []
    assert [state.tokens for state in live.submission_now().resumed] == [[], [], []]
    assert live.submission_now().params.prompt_logprobs == 1
    live.accept(
        Output("r", 0, [5], cumulative_logprob=-1.0, cached_tokens=4, queue_time=0.1,
               prompt_logprobs=[logprob(2)])
    )  # fmt: skip
    assert live.submission_now().params.prompt_logprobs is None
    live.accept(Output("r", 1, [6, 7], finish_reason=FinishReason.STOP))
    again = live.submission_now()
    assert [(s.choice, s.tokens, s.finished) for s in again.resumed] == [
        (0, [5], False),
        (1, [6, 7], True),
        (2, [], False),
    ]
    assert again.resumed[0].cumulative_logprob == -1.0
    assert again.params.prompt_logprobs is None
    assert again.seed == 7
    live.accept(Output("r", 0, [8], cached_tokens=6, queue_time=9.0))
    assert again.resumed[0].tokens == [5], "what was sent must not change under the encoder"
    first = await live.next()
    assert first is not None
    assert (first.tokens, first.cached_tokens, first.queue_time) == ([5, 8], 4, 0.1)
    assert first.prompt_logprobs == [logprob(2)]


async def test_an_aborted_choice_is_silent_and_not_run_again() -> None:
    live = LiveRequest(submission(n=2))
    assert live.abort(1)
    assert not live.abort(1)
    live.accept(Output("r", 1, [3]))
    live.accept(Output("r", 0, [4], finish_reason=FinishReason.STOP))
    output = await live.next()
    assert output is not None and output.choice == 0
    assert await live.next() is None
    live = LiveRequest(submission(n=2))
    live.abort(0)
    assert [state.finished for state in live.submission_now().resumed] == [True, False]


async def test_refusal_raises_only_before_the_first_output() -> None:
    live = LiveRequest(submission())
    live.refuse(Refused("too long", "context_length_exceeded"))
    with pytest.raises(Refused, match="too long"):
        await live.next()
    live = LiveRequest(submission())
    live.accept(Output("r", 0, [1]))
    live.refuse(Refused("no room", "queue_full"))
    output = await live.next()
    assert output is not None
    assert (output.tokens, output.error_code) == ([1], "queue_full")
    assert output.finish_reason is FinishReason.ERROR
    assert await live.next() is None


def test_a_request_is_condemned_only_after_two_crashes_alone() -> None:
    suspicion = Suspicion()
    seen = []
    for _ in range(4):
        suspicion.crashed({0: 5, 1: len(seen)})
        seen.append((suspicion.alone, suspicion.condemned))
    assert seen == [(False, False), (True, False), (True, False), (True, True)]


def test_a_suspect_that_moved_on_in_every_choice_is_counted_anew() -> None:
    suspicion = Suspicion()
    seen = []
    for reached in ({0: 5, 1: 5}, {0: 6, 1: 6}, {0: 7, 1: 6}, {1: 6}, {1: 7}):
        suspicion.crashed(reached)
        seen.append((suspicion.crashes, suspicion.lone_crashes))
    assert seen == [(1, 0), (1, 0), (2, 0), (3, 1), (1, 0)]


def test_the_restart_budget_is_a_rate() -> None:
    budget = RestartBudget(limit=2, window=10.0)
    assert [budget.spend(now) for now in (0.0, 1.0, 2.0, 9.9)] == [True, True, False, False]
    assert budget.spend(10.0)
    assert not budget.spend(10.5)
    assert budget.spend(11.0)


def test_totals_never_fall_over_restarts() -> None:
    totals = Totals("m")
    totals.update(EngineStats(model="m", running=3, blocks_total=9, generated_tokens_total=5,
                              finished_total={"stop": 2}))  # fmt: skip
    totals.restarted()
    assert totals.latest.generated_tokens_total == 5
    assert (totals.latest.running, totals.latest.blocks_free, totals.latest.blocks_total) == (
        0,
        9,
        9,
    )
    totals.update(EngineStats(model="m", running=1, blocks_total=9, generated_tokens_total=2,
                              finished_total={"stop": 1, "length": 1}))  # fmt: skip
    assert totals.latest.generated_tokens_total == 7
    assert totals.latest.finished_total == {"stop": 3, "length": 1}
    assert (totals.latest.running, totals.latest.blocks_total) == (1, 9)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
                        min_size=1), max_size=20))  # fmt: skip
def test_step_memory_gives_back_the_ids(ids: list[str]) -> None:
    memory = StepMemory.create()
    try:
        memory.write_ids(["earlier"])
        memory.write_ids(ids)
        assert memory.read_ids() == ids
    finally:
        memory.close()


def test_step_memory_leaves_out_what_does_not_fit() -> None:
    memory = StepMemory.create()
    ids = [f"{index:0255d}" for index in range(ID_BYTES // 256 + 10)]
    memory.write_ids(ids)
    got = memory.read_ids()
    assert got == ids[: len(got)]
    assert len(got) >= ID_BYTES // 256
    memory.close()


def test_the_recorder_keeps_the_last_steps_and_dumps_them(tmp_path: Path) -> None:
    recorder = Recorder(bytearray(1000))
    for step in range(1, 100):
        recorder.write(StepRecord(step, rows=step))
        recorder.write(StepRecord(step, "done", rows=step, committing=0.5))
    recorder.write(StepRecord(100, rows=3))
    records = recorder.read()
    assert [record.step for record in records] == list(range(101 - recorder.capacity, 101))
    assert records[-1].state == "begun"
    assert records[-2] == StepRecord(99, "done", rows=99, committing=0.5)
    path = dump(tmp_path / "new", "crash", "tested", {"pid": 1}, records)
    report = json.loads(path.read_text())
    assert report["reason"] == "tested"
    assert report["pid"] == 1
    assert report["steps"][-1]["rows"] == 3
