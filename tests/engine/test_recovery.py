"""A real engine process that is killed, stopped, poisoned: streams go on, or fail with a reason."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from octavo.core.request import FinishReason, Refused
from octavo.engine.client import AsyncEngine
from octavo.engine.errors import EngineStartError, EngineUnavailable
from octavo.engine.health import EngineState
from support.engine_tools import (
    Tally,
    assert_nothing_leaks,
    collect,
    engine_config,
    kill_after,
    runs,
    submission,
    until,
)
from support.fault_executors import POISON, next_token


def expected(prompt: list[int], count: int, seed: int, choice: int, greedy: bool) -> list[int]:
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history, seed, choice, greedy))
    return history[len(prompt) :]


def read_reports(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in directory.glob("engine-crash-*.json")]


async def test_a25_three_kills_in_the_middle_of_32_streams_lose_nothing(start_engine) -> None:
    """Every token depends on all before it: one lost or doubled would change the rest."""
    engine = await start_engine(
        engine_config("load_hash", extra={"delay": 0.004}, block_size=4, num_blocks=4096)
    )
    requests = [
        submission(
            f"r{i}", list(range(i, 3 * i + 1)), seed=i, n=1 + i % 3, temperature=float(i % 2),
            max_tokens=150, logprobs=0 if i % 4 == 0 else None,
        )
        for i in range(32)
    ]  # fmt: skip
    tally = Tally()
    tasks = [asyncio.create_task(collect(engine.submit(one), tally)) for one in requests]
    for _ in range(3):
        await kill_after(engine, tally, 500)
    for request, outputs in zip(requests, await asyncio.gather(*tasks), strict=True):
        params = request.params
        assert sorted(outputs) == list(range(params.n))
        for choice, output in outputs.items():
            assert output.error is None
            assert output.finish_reason is FinishReason.LENGTH
            assert output.tokens == expected(
                request.prompt, 150, request.seed, choice, params.greedy
            )
            if params.logprobs is not None:
                assert [entry.token for entry in output.logprobs or []] == output.tokens
                total = sum(-token / 512 for token in output.tokens)
                assert output.cumulative_logprob == pytest.approx(total)
    assert engine.health().restarts == 3
    assert engine.health().ready
    await assert_nothing_leaks(engine)


async def test_a_request_that_kills_the_engine_fails_alone(start_engine, tmp_path: Path) -> None:
    engine = await start_engine(
        engine_config("load_poison", extra={"delay": 0.002}), crash_dir=tmp_path
    )
    requests = [submission(f"good{i}", [i, i + 1], max_tokens=60) for i in range(8)]
    tasks = [asyncio.create_task(collect(engine.submit(request))) for request in requests]
    poison = asyncio.create_task(
        collect(engine.submit(submission("poison", [7, POISON], n=2, max_tokens=60)))
    )
    for output in (await poison).values():
        assert output.finish_reason is FinishReason.ERROR
        assert output.error_code == "poison_request"
    for request, outputs in zip(requests, await asyncio.gather(*tasks), strict=True):
        assert outputs[0].tokens == expected(request.prompt, 60, 1, 0, True)
    assert engine.health().restarts == 4, "two crashes in company, two alone"
    reports = read_reports(tmp_path)
    assert len(reports) == 4
    assert all("poison" in report["suspects"] for report in reports)
    assert all(report["steps"][-1]["state"] == "begun" for report in reports)
    assert all(report["exit_code"] == -signal.SIGKILL for report in reports)
    await assert_nothing_leaks(engine)


async def test_d01a_budget_spent_fails_everything(start_engine) -> None:
    engine = await start_engine(engine_config("load_hash", extra={"delay": 0.01}), restarts=2)
    tally = Tally()
    stream = engine.submit(submission("r", [1], max_tokens=4000))
    task = asyncio.create_task(collect(stream, tally))
    for _ in range(2):
        await kill_after(engine, tally, 5)
    assert not engine.failed.is_set()
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    output = (await task)[0]
    assert (output.finish_reason, output.error_code) == (FinishReason.ERROR, "engine_failed")
    assert "restarted 2 times" in str(output.error)
    await asyncio.wait_for(engine.failed.wait(), 1)
    health = engine.health()
    assert (health.ok, health.ready, health.state) == (False, False, EngineState.FAILED)
    with pytest.raises(Refused) as refused:
        engine.submit(submission("late", [1]))
    assert refused.value.code == "engine_failed"
    with pytest.raises(EngineUnavailable):
        await engine.control("stats")


async def test_a_failure_of_the_supervision_itself_fails_everything(
    start_engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a state "restarting" for ever."""
    engine = await start_engine(engine_config())
    stream = engine.submit(submission("r", [3], max_tokens=100_000))
    await anext(stream)

    def broken(ending: object) -> None:
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr(engine, "_note_crash", broken)
    os.kill(engine.pid, signal.SIGKILL)
    merged = await collect(stream)
    assert merged[0].error_code == "engine_failed" and "a fault of our own" in merged[0].error
    assert engine.failed.is_set() and not engine.health().ok


async def test_an_engine_that_does_not_load_again_spends_the_budget(
    start_engine, tmp_path: Path
) -> None:
    engine = await start_engine(
        engine_config("load_once", extra={"delay": 0.01, "mark": str(tmp_path / "mark")}),
        restarts=2,
    )
    task = asyncio.create_task(collect(engine.submit(submission("r", [1], max_tokens=4000))))
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await asyncio.wait_for(engine.failed.wait(), 20)
    assert (await task)[0].error_code == "engine_failed"
    assert "SIGKILL" in engine.health().reason


async def test_another_fingerprint_is_an_error_and_no_silent_change(start_engine) -> None:
    engine = await start_engine(engine_config("load_fickle", extra={"delay": 0.01}))
    tally = Tally()
    stream = engine.submit(submission("r", [1], max_tokens=4000))
    task = asyncio.create_task(collect(stream, tally))
    await kill_after(engine, tally, 5)
    output = (await task)[0]
    assert (output.finish_reason, output.error_code) == (FinishReason.ERROR, "fingerprint_changed")
    fresh = await collect(engine.submit(submission("fresh", [1])))
    assert fresh[0].tokens == expected([1], 16, 1, 0, True)


async def test_d01c_a_stopped_engine_is_noticed_killed_and_replaced(start_engine) -> None:
    engine = await start_engine(
        engine_config("load_hash", extra={"delay": 0.002}), watchdog_timeout=0.5
    )
    request = submission("r", [1, 2], max_tokens=300)
    tally = Tally()
    task = asyncio.create_task(collect(engine.submit(request), tally))
    await until(lambda: tally.tokens > 20, "tokens before the stop")
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    await until(lambda: engine.health().state is EngineState.STUCK, "the watchdog")
    assert not engine.health().ok
    output = (await task)[0]
    assert output.tokens == expected([1, 2], 300, 1, 0, True)
    assert engine.health().restarts == 1
    assert engine.health().ok


async def test_an_engine_that_goes_on_again_is_not_killed(start_engine) -> None:
    engine = await start_engine(
        engine_config("load_hash", extra={"delay": 0.002}), watchdog_timeout=1.0
    )
    task = asyncio.create_task(collect(engine.submit(submission("r", [1], max_tokens=300))))
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: engine.health().state is EngineState.STUCK, "the watchdog")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (await task)[0].tokens == expected([1], 300, 1, 0, True)
    assert engine.pid == pid
    assert engine.health().ready


async def test_requests_submitted_while_it_restarts_are_served(start_engine) -> None:
    engine = await start_engine(engine_config("load_hash"))
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: engine.pid is None, "the crash to be noticed")
    assert engine.health().state is EngineState.RESTARTING
    assert engine.health().ok and not engine.health().ready
    outputs = await collect(engine.submit(submission("r", [5])))
    assert outputs[0].tokens == expected([5], 16, 1, 0, True)


async def test_what_was_aborted_before_the_crash_does_not_come_back(start_engine) -> None:
    engine = await start_engine(engine_config("load_hash", extra={"delay": 0.005}))
    gone = engine.submit(submission("gone", [1], max_tokens=4000))
    half = engine.submit(submission("half", [2], n=2, max_tokens=400))
    tally = Tally()
    task = asyncio.create_task(collect(half, tally))
    await until(lambda: tally.tokens > 20, "progress")
    await gone.abort()
    await half.abort(0)
    await kill_after(engine, tally, 5)
    outputs = await task
    assert outputs[0].finish_reason is None
    assert outputs[1].tokens == expected([2], 400, 1, 1, True)
    await assert_nothing_leaks(engine)
    assert engine.stats.finished_total.get("abort", 0) <= 2


async def test_a_load_error_keeps_its_code_and_hint(start_engine) -> None:
    with pytest.raises(EngineStartError, match="the weights are incomplete") as failed:
        await start_engine(engine_config("load_failing"))
    assert failed.value.code == "model_incomplete"
    assert failed.value.hint == "download them again"


async def test_death_while_loading_is_a_start_error(start_engine) -> None:
    with pytest.raises(EngineStartError, match=r"while loading.*SIGKILL") as failed:
        await start_engine(engine_config("load_dying"))
    assert failed.value.code == "engine_died"


async def test_an_unknown_executor_is_named(start_engine) -> None:
    with pytest.raises(EngineStartError, match="load_nothing") as failed:
        await start_engine(engine_config("load_nothing"))
    assert failed.value.code == "executor_import_failed"


def test_the_engine_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the client is killed in the middle of a step and nobody closes anything."""
    client = (
        "import asyncio, os, signal\n"
        "from octavo.engine.client import AsyncEngine\n"
        "from support.engine_tools import engine_config, submission\n"
        "async def main():\n"
        "    engine = AsyncEngine(engine_config('load_hash', extra={'delay': 0.2}))\n"
        "    await engine.start()\n"
        "    stream = engine.submit(submission('r', [1], max_tokens=4000))\n"
        "    await anext(stream)\n"
        "    print(engine.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    tests = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{tests.parent / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-c", client], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    deadline = time.monotonic() + 5
    while runs(pid):
        assert time.monotonic() < deadline, "the engine outlived its client"
        time.sleep(0.01)


def test_the_server_s_own_event_loop_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop: streams, a kill, a resumption, an orderly end."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))

    async def scenario() -> None:
        engine = AsyncEngine(engine_config("load_hash", extra={"delay": 0.002}))
        await engine.start()
        tally = Tally()
        stream = engine.submit(submission("r", [1], max_tokens=100))
        task = asyncio.create_task(collect(stream, tally))
        await kill_after(engine, tally, 5)
        assert (await task)[0].tokens == expected([1], 100, 1, 0, True)
        await assert_nothing_leaks(engine)
        pid = engine.pid
        assert pid is not None
        await engine.close()
        assert not runs(pid)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
