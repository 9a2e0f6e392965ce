"""The disk tier in the real engine: a restart, a crash, a full directory, a library that ends."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from octavo import LLMEngine, SamplingParams
from octavo.core.request import Output
from octavo.engine.build import build_engine_core
from octavo.engine.client import AsyncEngine
from octavo.engine.errors import EngineFatal
from support.engine_tools import (
    Tally,
    assert_nothing_leaks,
    collect,
    engine_config,
    kill_after,
    submission,
    until,
)
from support.tiny_models import write_tiny_random

PROMPT = [(7 * i) % 200 + 20 for i in range(200)]
FULL = len(PROMPT) // 16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_random(tmp_path_factory.mktemp("tiny"), seed=5)


def config(model: Path, disk: Path | None, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "model": str(model),
        "max_model_len": 512,
        "num_blocks": 64,
        "max_num_batched_tokens": 48,
        "row_at_a_time": True,
        "kv_disk_dir": None if disk is None else str(disk),
        "kv_disk_size": 2**26,
    }
    return engine_config("octavo.model.runner:load", **(values | changes))


async def ask(engine: AsyncEngine, request_id: str, **params: Any) -> Output:
    values = {"max_tokens": 6, "ignore_eos": True, "logprobs": 1, **params}
    outputs = await collect(engine.submit(submission(request_id, PROMPT, **values)))
    return outputs[0]


def said(output: Output) -> tuple[Any, ...]:
    return output.tokens, output.logprobs, output.finish_reason, output.error


async def stored(engine: AsyncEngine, count: int) -> None:
    await until(lambda: engine.stats.tier_stored_total >= count, f"{count} stored blocks")


async def test_a_restart_finds_the_prompt_and_says_the_same(
    start_engine: Any, tiny: Path, tmp_path: Path
) -> None:
    plain = await start_engine(config(tiny, None))
    expected = await ask(plain, "plain")
    assert not plain.stats.tier_active
    await plain.close()
    first = await start_engine(config(tiny, tmp_path))
    cold = await ask(first, "cold")
    assert (said(cold), cold.cached_tokens) == (said(expected), 0)
    # It idles now: what was published with the last steps is written all the same.
    await stored(first, FULL)
    await assert_nothing_leaks(first)
    await first.close()
    second = await start_engine(config(tiny, tmp_path))
    warm = await ask(second, "warm")
    assert (said(warm), warm.cached_tokens) == (said(expected), FULL * 16)
    await assert_nothing_leaks(second)
    stats = second.stats
    assert (stats.tier_hits_total, stats.tier_loaded_total, stats.tier_errors_total) == (
        FULL,
        FULL,
        0,
    )
    assert stats.tier_active and stats.tier_bytes > 0


async def test_a_killed_engine_goes_on_with_what_is_on_disk(
    start_engine: Any, tiny: Path, tmp_path: Path
) -> None:
    engine = await start_engine(config(tiny, tmp_path))
    await ask(engine, "before")
    await stored(engine, FULL)
    tally = Tally()
    stream = engine.submit(submission("cut", [*PROMPT, 9], max_tokens=60, ignore_eos=True))
    task = asyncio.create_task(collect(stream, tally))
    await kill_after(engine, tally, 5)
    await task
    await assert_nothing_leaks(engine)
    assert engine.stats.tier_active, "the lock of the process that died is free"
    assert engine.stats.tier_loaded_total >= FULL


async def test_a_directory_that_is_removed_costs_nothing_but_the_tier(
    start_engine: Any, tiny: Path, tmp_path: Path
) -> None:
    engine = await start_engine(config(tiny, tmp_path / "kv"))
    expected = await ask(engine, "before")
    await stored(engine, FULL)
    shutil.rmtree(tmp_path / "kv")
    await engine.control("reset_prefix_cache")
    assert said(await ask(engine, "after")) == said(expected)
    await until(lambda: not engine.stats.tier_active, "the tier off")
    assert said(await ask(engine, "later")) == said(expected)
    await assert_nothing_leaks(engine)


async def test_another_model_does_not_find_it(
    start_engine: Any, tiny: Path, tmp_path: Path
) -> None:
    engine = await start_engine(config(tiny, tmp_path / "kv"))
    await ask(engine, "one")
    await stored(engine, FULL)
    await engine.close()
    other = write_tiny_random(tmp_path / "other", seed=6)
    engine = await start_engine(config(other, tmp_path / "kv"))
    answer = await ask(engine, "two")
    assert answer.cached_tokens == 0
    assert engine.stats.tier_errors_total == 0


def test_a_size_that_holds_nothing_is_refused_at_the_start(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineFatal, match="kv_disk_size is 100 bytes") as caught:
        build_engine_core(config(tiny, tmp_path, kv_disk_size=100))
    assert caught.value.code == "kv_disk_too_small"


def test_the_library_keeps_it_too(tiny: Path, tmp_path: Path) -> None:
    texts, cached = [], []
    for _ in range(2):
        engine = LLMEngine(str(tiny), kv_tokens=1024, max_model_len=512, kv_disk_dir=str(tmp_path))
        engine.add_request("a", PROMPT, SamplingParams(temperature=0.0, max_tokens=6))
        outputs = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
        texts.append(outputs[-1].outputs[0].token_ids)
        cached.append(engine._core.scheduler.counters.cached_tokens)
        engine.close()
    assert texts[0] == texts[1]
    assert cached == [0, FULL * 16]
