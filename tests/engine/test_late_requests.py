"""Deadlines across the processes: also while the engine is busy, stopped or being replaced."""

from __future__ import annotations

import os
import signal
from typing import Any

from octavo.core.request import FinishReason, Refused, Submission
from support.engine_tools import assert_nothing_leaks, collect, engine_config, submission, until


def due(request_id: str, timeout: float, **params: Any) -> Submission:
    one = submission(request_id, [1, 2, 3], **params)
    one.timeout = timeout
    return one


async def test_a_waiting_request_fails_at_its_deadline(start_engine) -> None:
    engine = await start_engine(engine_config(max_num_seqs=1, extra={"delay": 0.01}))
    first = engine.submit(submission("first", [1], max_tokens=4000))
    await anext(first)
    try:
        (output,) = (await collect(engine.submit(due("late", 0.3)))).values()
    except Refused as refused:  # it was seen to be in vain already, if steps were slow
        assert refused.code == "deadline_unreachable"
    else:
        assert output.finish_reason is FinishReason.ERROR
        assert output.error_code == "deadline_exceeded"
        assert "still waiting to begin" in str(output.error) and not output.tokens
    await first.aclose()
    await assert_nothing_leaks(engine)


async def test_a_running_request_fails_at_its_deadline_and_is_computed_no_further(
    start_engine,
) -> None:
    engine = await start_engine(engine_config(extra={"delay": 0.01}))
    (output,) = (await collect(engine.submit(due("late", 0.3, max_tokens=4000)))).values()
    assert output.error_code == "deadline_exceeded" and output.tokens
    assert "was not complete at its deadline, 0.3 s after its arrival" in str(output.error)
    await assert_nothing_leaks(engine)
    (output,) = (await collect(engine.submit(due("in time", 60, max_tokens=5)))).values()
    assert output.finish_reason is FinishReason.LENGTH


async def test_an_engine_that_does_not_answer_keeps_nobody_beyond_the_deadline(
    start_engine,
) -> None:
    engine = await start_engine(engine_config(extra={"delay": 0.01}))
    stream = engine.submit(due("late", 0.5, max_tokens=4000))
    await anext(stream)
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        (output,) = (await collect(stream)).values()
        assert output.error_code == "deadline_exceeded"
        assert engine.live == 0
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    await assert_nothing_leaks(engine)


async def test_a_deadline_that_passed_before_the_request_came(start_engine) -> None:
    engine = await start_engine(engine_config())
    one = due("late", 1.0)
    one.arrival = 0.001  # the machine was started then
    # Whoever notices first: the timer here, or the engine.
    try:
        (output,) = (await collect(engine.submit(one))).values()
        code = output.error_code
    except Refused as refused:
        code = refused.code
    assert code == "deadline_exceeded"
    await until(lambda: engine.live == 0, "nothing live")
