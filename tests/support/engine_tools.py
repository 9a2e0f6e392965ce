"""What tests of the engine share: configurations, submissions, reading streams, oracles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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


async def collect(stream: RequestStream) -> dict[int, Output]:
    """All of a stream, merged per choice."""
    merged: dict[int, Output] = {}
    async for output in stream:
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


async def assert_nothing_leaks(engine: AsyncEngine) -> None:
    """The leak oracle: once idle nobody runs or waits, and no block is held."""
    await until(
        lambda: engine.stats.running == engine.stats.waiting == engine.stats.blocks_held == 0,
        f"an idle engine, not {engine.stats}",
    )
    stats = engine.stats
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    assert stats.slots_filled == stats.logical_blocks == 0
    assert engine.live == 0


def runs(pid: int | None) -> bool:
    """Whether the process lives (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")
