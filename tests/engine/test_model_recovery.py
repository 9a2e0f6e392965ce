"""Crashes under a real model: bit for bit the tokens and logprobs of an undisturbed run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.core.request import Output, Submission
from octavo.engine.client import AsyncEngine
from support.engine_tools import (
    Tally,
    assert_nothing_leaks,
    collect,
    engine_config,
    kill_after,
    submission,
)
from support.tiny_models import write_tiny_random


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_random(tmp_path_factory.mktemp("tiny"), seed=5)


def config(model: Path, **changes: Any) -> Any:
    return engine_config(
        "octavo.model.runner:load",
        model=str(model),
        max_model_len=512,
        num_blocks=512,
        block_size=16,
        max_num_batched_tokens=48,
        row_at_a_time=True,
        **changes,
    )


def requests() -> list[Submission]:
    """32 streams: greedy and seeded, one choice and three, logprobs, penalties, shared prefixes."""
    made = []
    for i in range(32):
        prompt = [(7 * j) % 200 + 20 for j in range(i % 4 * 8)] + [30 + i, 40 + i]
        params: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True}
        if i % 2:
            params.update(temperature=0.8, top_p=0.9, top_k=50)
        if i % 3 == 0:
            params.update(n=3)
        if i % 4 == 0:
            params.update(logprobs=2)
        if i % 5 == 0:
            params.update(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2)
        if i % 8 == 0:
            params.update(prompt_logprobs=1)
        made.append(submission(f"r{i}", prompt, seed=100 + i, **params))
    return made


def said(output: Output) -> tuple[Any, ...]:
    return (
        output.tokens,
        output.logprobs,
        output.prompt_logprobs,
        output.cumulative_logprob,
        output.finish_reason,
        output.stop_reason,
        output.error,
    )


async def run(engine: AsyncEngine, kills: int) -> list[dict[int, Output]]:
    tally = Tally()
    tasks = [asyncio.create_task(collect(engine.submit(one), tally)) for one in requests()]
    for _ in range(kills):
        await kill_after(engine, tally, 250)
    return await asyncio.gather(*tasks)


async def test_three_kills_under_32_streams_change_nothing(start_engine, tiny: Path) -> None:
    calm = await start_engine(config(tiny))
    undisturbed = await run(calm, kills=0)
    await assert_nothing_leaks(calm)
    await calm.close()
    engine = await start_engine(config(tiny))
    disturbed = await run(engine, kills=3)
    assert engine.health().restarts == 3
    for request, calm_outputs, outputs in zip(requests(), undisturbed, disturbed, strict=True):
        assert sorted(outputs) == sorted(calm_outputs) == list(range(request.params.n))
        for choice in outputs:
            assert said(outputs[choice]) == said(calm_outputs[choice]), request.request_id
            assert len(outputs[choice].tokens) == 30
    await assert_nothing_leaks(engine)
