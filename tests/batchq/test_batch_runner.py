"""The runner over a store and an `execute` of ours: turns, bounds, expiry, tries, faults."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchq.conftest import Clock
from octavo.batchq.objects import LIVE, WINDOW_SECONDS, Batch, CreateBatch, Status
from octavo.batchq.runner import Response, Runner
from octavo.batchq.store import Result, Store

URL = "/v1/completions"


class Execute:
    """Answers when `gate` is open, which shuts after so many; `script` tells other answers."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.prompts: list[str] = []
        self.shuts_after = 10**9
        self.running = 0
        self.most = 0
        self.script: dict[str, list[Response]] = {}

    async def __call__(self, url: str, body: bytes, owner: str, request_id: str) -> Response:
        prompt = json.loads(body)["prompt"]
        self.prompts.append(prompt)
        if len(self.prompts) > self.shuts_after:
            self.gate.clear()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        scripted = self.script.get(prompt)
        return scripted.pop(0) if scripted else Response(200, b"{}")


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(tmp_path, None, None, clock)


def put(store: Store, *prompts: str) -> str:
    rows = [{"custom_id": p, "method": "POST", "url": URL, "body": {"prompt": p}} for p in prompts]
    content = io.BytesIO("\n".join(map(json.dumps, rows)).encode())
    file = store.files.add("", content, "in", "batch")
    return store.create("", CreateBatch(file.id, URL, "24h")).id


@asynccontextmanager
async def running(
    store: Store, execute: Execute, in_flight: int, clock: Clock
) -> AsyncIterator[tuple[Runner, Callable[[str], Batch]]]:
    runner = Runner(store, execute, in_flight, clock)
    runner.start()
    try:
        yield runner, lambda batch_id: store.get("", batch_id)
    finally:
        await runner.close()
        store.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_batches_take_turns_within_the_bound(store: Store, clock: Clock) -> None:
    execute = Execute()
    first = put(store, *(f"a{n}" for n in range(12)))
    second = put(store, *(f"b{n}" for n in range(4)))
    async with running(store, execute, 2, clock) as (runner, get):
        await until(lambda: get(first).status == get(second).status == Status.COMPLETED)
        assert execute.most <= 2
        last_b = execute.prompts.index("b3")
        assert last_b < len(execute.prompts) - 2, "the short one does not wait for the long one"
        await until(lambda: runner.counts.live == 0)
        counts = runner.counts
        assert (counts.pending, counts.running, counts.done) == (0, 0, 16)


async def test_expiry_ends_a_batch(store: Store, clock: Clock) -> None:
    execute = Execute()
    execute.gate.clear()
    batch_id = put(store, "a", "b", "c")
    async with running(store, execute, 1, clock) as (runner, get):
        await until(lambda: execute.running == 1)
        clock.time += WINDOW_SECONDS
        runner.wake()
        await until(lambda: get(batch_id).status == Status.EXPIRED)
        assert execute.running == 0 and get(batch_id).error_file_id is not None


async def test_tries_again_what_says_nothing_about_the_row(store: Store, clock: Clock) -> None:
    execute = Execute()
    execute.script["a"] = [Response(429, b"{}", 0.01), Response(503, b"{}", 0.01)]
    execute.script["b"] = [Response(500, b'{"error": 1}')]
    batch_id = put(store, "a", "b")
    async with running(store, execute, 4, clock) as (_, get):
        await until(lambda: get(batch_id).status == Status.COMPLETED)
        counts = get(batch_id).request_counts
        assert (counts.completed, counts.failed) == (1, 1)
        assert sorted(execute.prompts) == ["a", "a", "a", "b"]


async def test_a_commit_that_fails_is_a_row_to_run_again(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, a database that went away: nothing is lost, nothing is there twice."""
    execute = Execute()
    batch_id = put(store, "a", "b")
    real, faults = store.record, [1]

    def faulty(results: list[Result]) -> list[bool]:
        if faults:
            faults.pop()
            raise sa.exc.OperationalError("commit", {}, Exception("the disk is full"))
        return real(results)

    monkeypatch.setattr(store, "record", faulty)
    async with running(store, execute, 1, clock) as (runner, get):
        await until(lambda: not faults and runner.counts.live == 0)
        assert get(batch_id).status in LIVE
        runner.wake()
        await until(lambda: get(batch_id).status == Status.COMPLETED)
        assert get(batch_id).request_counts.completed == 2


async def test_close_keeps_what_is_committed(store: Store, clock: Clock, tmp_path: Path) -> None:
    execute = Execute()
    execute.shuts_after = 3
    batch_id = put(store, *(f"{n}" for n in range(8)))
    async with running(store, execute, 2, clock) as (_, get):
        await until(lambda: execute.running == 2 and get(batch_id).request_counts.completed == 3)
    again = Store(tmp_path, None, None, clock)
    done = again.get("", batch_id).request_counts.completed
    assert (done, len(again.pending(batch_id))) == (3, 5) and again.get("", batch_id).status in LIVE
    again.close()
