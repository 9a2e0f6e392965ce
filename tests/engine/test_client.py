"""The client on a real engine process: streams, aborts, storms, slow readers, draining, idling."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from pathlib import Path

import pytest

from octavo.core.request import FinishReason, Output, Refused
from octavo.engine.client import AsyncEngine
from octavo.engine.errors import EngineStartError, EngineUnavailable
from octavo.engine.health import EngineState
from support.engine_tools import (
    assert_nothing_leaks,
    at_rest,
    collect,
    engine_config,
    runs,
    submission,
    until,
)
from support.fault_executors import BAD_ROW, RAISES, VOCAB, next_token

SLOW = {"delay": 0.002}


async def test_requests_stream_and_leave_nothing(start_engine) -> None:
    engine = await start_engine(engine_config())
    assert engine.info["fingerprint"] == "hash-1"
    assert engine.info["load_seconds"] > 0
    assert engine.health().ready
    streams = [engine.submit(submission(f"r{i}", [i], n=2, temperature=1.0)) for i in range(20)]
    for i, stream in enumerate(streams):
        outputs = await collect(stream)
        for choice in range(2):
            history = [i]
            for _ in range(16):
                history.append(next_token(history, 1, choice, False))
            assert outputs[choice].tokens == history[1:]
            assert outputs[choice].queue_time is not None
    await assert_nothing_leaks(engine)
    assert engine.stats.finished_total == {"length": 40}
    assert engine.stats.generated_tokens_total == 640


async def test_refusals_come_with_their_code(start_engine) -> None:
    engine = await start_engine(engine_config(max_model_len=4000, max_waiting_requests=2,
                                              max_num_seqs=1, extra=SLOW))  # fmt: skip
    with pytest.raises(Refused) as refused:
        await collect(engine.submit(submission("long", [1] * 4000)))
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(Refused) as refused:
        await collect(engine.submit(submission("id", [VOCAB])))
    assert (refused.value.code, refused.value.param) == ("invalid_request", "prompt")
    with pytest.raises(Refused, match="malformed"):
        await collect(engine.submit(submission("float", [1.5])))  # type: ignore[list-item]
    with pytest.raises(Refused, match="cannot be sent"):
        engine.submit(submission("big", [2**70]))
    with pytest.raises(Refused, match="request_id"):
        engine.submit(submission("", [1]))
    streams = [engine.submit(submission("r0", [1], max_tokens=2000))]
    await anext(streams[0])  # it runs; two more may wait
    streams += [engine.submit(submission(f"r{i}", [1], max_tokens=5)) for i in (1, 2)]
    with pytest.raises(Refused, match="in use"):
        engine.submit(submission("r1", [1]))
    with pytest.raises(Refused) as refused:
        await collect(engine.submit(submission("r9", [1])))
    assert refused.value.code == "queue_full"
    assert refused.value.retry_after
    await streams.pop(0).abort()
    for stream in streams:
        await collect(stream)
    await assert_nothing_leaks(engine)


async def test_a25a_a_row_or_step_that_fails_ends_only_its_requests(start_engine) -> None:
    engine = await start_engine(engine_config("load_faulty", max_num_seqs=4))
    bad = await collect(engine.submit(submission("bad", [BAD_ROW])))
    assert (bad[0].finish_reason, bad[0].error_code) == (FinishReason.ERROR, "row_failed")
    broken = await collect(engine.submit(submission("broken", [RAISES])))
    assert broken[0].error_code == "engine_step_failed"
    good = await collect(engine.submit(submission("good", [1])))
    assert good[0].finish_reason is FinishReason.LENGTH
    assert engine.health().restarts == 0
    await assert_nothing_leaks(engine)


async def test_abort_frees_and_silences(start_engine) -> None:
    engine = await start_engine(engine_config(extra=SLOW))
    stream = engine.submit(submission("r", [1], n=2, max_tokens=4000))
    await anext(stream)
    await stream.abort(0)
    assert {(await anext(stream)).choice for _ in range(5)} == {1}
    await stream.abort()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await assert_nothing_leaks(engine)
    assert engine.stats.finished_total["abort"] == 2


async def test_a_stream_that_is_dropped_or_closed_is_aborted(start_engine) -> None:
    engine = await start_engine(engine_config(extra=SLOW))
    stream = engine.submit(submission("dropped", [1], max_tokens=4000))
    await anext(stream)
    del stream
    gc.collect()
    async with engine.submit(submission("closed", [1], max_tokens=4000)) as closed:
        await anext(closed)
    await assert_nothing_leaks(engine)


async def test_c03_storms_of_cancellation_leave_nothing(start_engine) -> None:
    """Clients leave at once, in the queue, in prefill, after some tokens; 400 of them."""
    engine = await start_engine(
        engine_config(block_size=4, num_blocks=256, max_num_seqs=16, max_num_batched_tokens=32)
    )
    chance = random.Random(3)

    async def client(index: int) -> None:
        prompt = [chance.randrange(400) for _ in range(chance.randrange(1, 120))]
        request = submission(f"c{index}", prompt, n=chance.randrange(1, 4), max_tokens=600)
        async with engine.submit(request) as stream:
            for _ in range(chance.choice((0, 0, 1, 1, 3, 8))):
                await anext(stream)

    for wave in range(8):
        await asyncio.gather(*(client(50 * wave + i) for i in range(50)))
    await assert_nothing_leaks(engine)
    outputs = await collect(engine.submit(submission("after", [1])))
    assert len(outputs[0].tokens) == 16
    assert engine.health().restarts == 0


async def test_d15_a_slow_reader_gets_merged_deltas_and_all_tokens(start_engine) -> None:
    engine = await start_engine(engine_config())
    slow = engine.submit(submission("slow", [1], max_tokens=2000, logprobs=0))
    quick = await collect(engine.submit(submission("quick", [2], max_tokens=50)))
    assert len(quick[0].tokens) == 50
    await until(lambda: engine.live == 0, "the slow reader's request to finish unread")
    outputs: list[Output] = [output async for output in slow]
    assert len(outputs) == 1, "one merged output, not a queue of 2,000"
    assert len(outputs[0].tokens) == 2000
    assert [entry.token for entry in outputs[0].logprobs or []] == outputs[0].tokens


async def test_d15_a_reader_beyond_the_bound_is_cut_off_and_frees(start_engine) -> None:
    engine = await start_engine(engine_config(), max_buffered=500)
    stream = engine.submit(submission("r", [1], max_tokens=4000, logprobs=0))
    await until(lambda: engine.live == 0, "the slow reader to be cut off")
    output = (await collect(stream))[0]
    assert (output.finish_reason, output.error_code) == (FinishReason.ERROR, "slow_reader")
    assert len(output.tokens) < 600
    await assert_nothing_leaks(engine)


async def test_f01_gauges_are_right_as_soon_as_it_idles(start_engine) -> None:
    engine = await start_engine(engine_config(extra=SLOW))
    streams = [engine.submit(submission(f"r{i}", [i], max_tokens=4000)) for i in range(100)]
    await until(lambda: engine.stats.running > 0, "running requests in the statistics")
    assert engine.stats.blocks_held > 0
    for stream in streams:
        await stream.aclose()
    await until(lambda: at_rest(engine), "gauges at rest, without any new request")
    await assert_nothing_leaks(engine)


async def test_drain_finishes_what_runs_and_refuses_the_rest(start_engine) -> None:
    engine = await start_engine(engine_config(extra=SLOW))
    task = asyncio.create_task(collect(engine.submit(submission("r", [1], max_tokens=100))))
    draining = asyncio.create_task(engine.drain(20.0))
    await until(lambda: engine.health().state is EngineState.DRAINING, "draining")
    assert engine.health().ok and not engine.health().ready
    with pytest.raises(Refused) as refused:
        engine.submit(submission("late", [1]))
    assert refused.value.code == "draining"
    assert refused.value.retry_after
    assert await draining
    assert len((await task)[0].tokens) == 100


async def test_d03_drain_has_a_limit_and_close_tells_the_rest(start_engine) -> None:
    engine = await start_engine(engine_config(extra=SLOW))
    pid = engine.pid
    task = asyncio.create_task(collect(engine.submit(submission("r", [1], max_tokens=4000))))
    await until(lambda: engine.stats.running == 1, "a running request")
    assert not await engine.drain(0.05)
    await engine.close()
    output = (await task)[0]
    assert (output.finish_reason, output.error_code) == (FinishReason.ERROR, "engine_closed")
    assert not runs(pid)


async def test_close_ends_a_start_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    engine = AsyncEngine(engine_config("load_never"))
    start = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    assert engine.health().state is EngineState.LOADING
    assert engine.health().ok and not engine.health().ready
    await engine.close()
    with pytest.raises(EngineStartError):
        await start
    assert not engine.failed.is_set()


async def test_d03_signals_to_the_whole_group_leave_the_engine_to_the_drain(start_engine) -> None:
    engine = await start_engine(engine_config(extra=SLOW))
    task = asyncio.create_task(collect(engine.submit(submission("r", [1], max_tokens=60))))
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGINT)
    os.kill(engine.pid, signal.SIGTERM)
    assert len((await task)[0].tokens) == 60
    assert engine.health().restarts == 0


async def test_control_answers_and_unknown_operations_do_not(start_engine) -> None:
    engine = await start_engine(engine_config())
    await collect(engine.submit(submission("r", [1] * 40)))
    assert (await engine.control("stats"))["generated_tokens_total"] == 16
    steps = (await engine.control("recorder"))["steps"]
    assert len(steps) >= 16
    assert {step["state"] for step in steps} == {"done"}
    assert steps[0]["rows"] == 1 and steps[0]["tokens"] == 40
    before = (await engine.control("stats"))["blocks_cached"]
    assert before > 0
    await engine.control("reset_prefix_cache")
    assert (await engine.control("stats"))["blocks_cached"] == 0
    with pytest.raises(EngineUnavailable, match="unknown"):
        await engine.control("dance")


async def test_an_idle_engine_uses_no_cpu(start_engine) -> None:
    engine: AsyncEngine = await start_engine(engine_config())
    await collect(engine.submit(submission("r", [1])))
    await assert_nothing_leaks(engine)
    before = _cpu_seconds(engine.pid)
    await asyncio.sleep(2.0)
    assert _cpu_seconds(engine.pid) - before <= 0.02


def _cpu_seconds(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
