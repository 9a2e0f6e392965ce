"""What tests of the engine share: configurations, submissions, reading streams, oracles."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.core.params import SamplingParams
from octavo.core.request import Output, Submission
from octavo.engine.client import AsyncEngine
from octavo.engine.messages import EngineConfig
from octavo.engine.stream import RequestStream


def engine_config(executor: str = "load_hash", **changes: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "model": "none",
        "served_name": "tiny",
        "max_model_len": 4096,
        "num_blocks": 2048,
        "max_num_batched_tokens": 256,
        "executor": executor if ":" in executor else f"support.fault_executors:{executor}",
    }
    return EngineConfig(**{**values, **changes})


def submission(request_id: str, prompt: list[int], seed: int = 1, **params: Any) -> Submission:
    values = {"max_tokens": 16, "temperature": 0.0, **params}
    return Submission(request_id, prompt, SamplingParams(**values), seed)


@dataclass
class Tally:
    """Tokens that have reached the readers."""

    tokens: int = 0


async def collect(stream: RequestStream, tally: Tally | None = None) -> dict[int, Output]:
    """All of a stream, merged per choice."""
    merged: dict[int, Output] = {}
    async for output in stream:
        if tally is not None:
            tally.tokens += len(output.tokens)
        earlier = merged.get(output.choice)
        if earlier is None:
            merged[output.choice] = output
            continue
        assert earlier.finish_reason is None, "an output after the last one"
        assert output.cached_tokens is None and output.prompt_logprobs is None
        earlier.tokens += output.tokens
        if output.logprobs is not None:
            earlier.logprobs = (earlier.logprobs or []) + output.logprobs
        for name in ("finish_reason", "stop_reason", "error", "error_code", "cumulative_logprob"):
            setattr(earlier, name, getattr(output, name))
    return merged


async def until(condition: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)


async def kill_after(engine: AsyncEngine, tally: Tally, tokens: int) -> None:
    """`kill -9` once so many more tokens have arrived; waits for the next process."""
    pid, enough = engine.pid, tally.tokens + tokens
    assert pid is not None
    await until(lambda: tally.tokens >= enough, "progress before the kill", 30)
    assert engine.live > 0, "the kill must come in the middle"
    os.kill(pid, signal.SIGKILL)
    await until(lambda: engine.pid not in (None, pid), "a new engine process", 30)


def at_rest(engine: AsyncEngine) -> bool:
    stats = engine.stats
    return stats.running == stats.waiting == stats.blocks_held == 0


async def assert_nothing_leaks(engine: AsyncEngine) -> None:
    """The leak oracle: once idle nobody runs or waits, and no block is held. The engine itself is
    asked, so that no snapshot from before the work passes for one from after it."""
    await until(lambda: engine.health().ready, "an engine that can be asked")
    deadline = time.monotonic() + 15
    while True:
        now = await engine.control("stats")
        if now["running"] == now["waiting"] == now["blocks_held"] == 0:
            break
        assert time.monotonic() < deadline, f"not at rest: {now}"
        await asyncio.sleep(0.01)
    assert now["blocks_free"] + now["blocks_cached"] == now["blocks_total"]
    assert now["slots_filled"] == now["logical_blocks"] == 0
    assert engine.live == 0
    await until(
        lambda: at_rest(engine) and engine.stats.steps_total >= now["steps_total"],
        "the same in the snapshot that the engine sends by itself",
    )


def runs(pid: int | None) -> bool:
    """Whether the process lives (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")
