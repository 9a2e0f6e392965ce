"""Runs live batches, row by row, until they are over or the server ends.

Owns: which rows are in flight and how many, what is tried again, cancelling, expiry, the counts for
metrics.
Does not know: HTTP or the engine: `execute` runs one request.

Batches take turns: each asks for one place at a time, and places are given in the order of asking.
A row's result counts once it is committed; a row without one runs again, after a restart too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from octavo.batchq.objects import LIVE, Limits, LineError, Status
from octavo.batchq.store import Result, Store
from octavo.batchq.validate import Row, read_rows, row_hash

logger = logging.getLogger("octavo.batchq")

LOOK_EVERY = 30.0
"""Seconds between looks for what is past its time."""
TRY_AGAIN = (429, 503)
"""Statuses that say nothing about the row."""
_LONGEST_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    retry_after: float | None = None


class Execute(Protocol):
    """Runs `body` as a request of `owner` to `url`. Raises nothing but CancelledError."""

    async def __call__(self, url: str, body: bytes, owner: str, request_id: str) -> Response: ...


@dataclass(eq=False, slots=True)
class _Run:
    """A batch while it is worked on. `reason` is why it is to end early."""

    batch_id: str
    owner: str
    endpoint: str = ""
    expires_at: int = 0
    reason: Status | None = None
    works: set[asyncio.Future[Response]] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, reason: Status) -> None:
        self.reason = self.reason or reason
        self.changed.set()
        for work in self.works:
            work.cancel()


@dataclass(slots=True)
class Counts:
    """Rows `done` and `failed` since the start; `pending` and `running` and live batches now."""

    pending: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    live: int = 0


class _Recorder:
    """Commits results: those that come while a commit is under way share the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[Result, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def record(self, result: Result) -> bool:
        """`Store.record` of one; returns once it is durable."""
        committed = asyncio.get_running_loop().create_future()
        self._waiting.append((result, committed))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        return bool(await committed)

    async def _commit(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting, []
            try:
                found = await asyncio.to_thread(self._store.record, [one for one, _ in taken])
            except Exception as error:
                for _, committed in taken:
                    committed.set_exception(error)
            else:
                for (_, committed), recorded in zip(taken, found, strict=True):
                    committed.set_result(recorded)
        self._task = None


class Runner:
    """All methods belong to the loop that called `start`. `on_change` is called after every result,
    and when a batch is over or given up until the next look."""

    def __init__(
        self,
        store: Store,
        execute: Execute,
        in_flight: int,
        now: Callable[[], float] = time.time,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._recorder = _Recorder(store)
        self._execute = execute
        self._places = asyncio.Semaphore(in_flight)
        self._now = now
        self._on_change = on_change
        self._runs: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self.counts = Counts()

    def start(self) -> None:
        self._main = asyncio.create_task(self._watch(), name="batches")

    def wake(self) -> None:
        """There is a new batch, or one is to be cancelled, or the clock was moved."""
        self._wake.set()

    def stop(self) -> None:
        """Begin no more rows. Those in flight go on until `close`."""
        self._stopping.set()
        self._wake.set()
        for run in self._runs.values():
            run.changed.set()

    async def close(self) -> None:
        """Drop what is still in flight; what is being committed is committed first."""
        self.stop()
        for run in self._runs.values():
            for work in run.works:
                work.cancel()
        if self._main is not None:
            await self._main
        await asyncio.gather(*self._tasks)

    async def _watch(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                await asyncio.to_thread(self._store.files.expire)
                await self._look()
            except Exception:
                logger.exception("cannot look for batches; trying again")
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        """Begin what is not worked on, and end what was cancelled or is past its time."""
        for batch_id, owner in await asyncio.to_thread(self._store.live):
            batch = await asyncio.to_thread(self._store.get, owner, batch_id)
            if self._stopping.is_set():
                return
            run = self._runs.get(batch_id)
            if run is None:
                run = self._runs[batch_id] = _Run(batch_id, owner, batch.endpoint, batch.expires_at)
                task = asyncio.create_task(self._work(run), name=batch_id)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if batch.status == Status.CANCELLING:
                run.end(Status.CANCELLED)
            elif batch.status != Status.FINALIZING and self._now() >= batch.expires_at:
                run.end(Status.EXPIRED)
        self.counts.live = len(self._runs)

    async def _work(self, run: _Run) -> None:
        """All of one batch. What goes wrong here is tried again at the next look."""
        self.counts.live = len(self._runs)
        try:
            await self._advance(run)
        except Exception:
            logger.exception("%s is interrupted; trying again", run.batch_id)
        finally:
            del self._runs[run.batch_id]
            self.counts.live = len(self._runs)
            if self._on_change is not None:
                self._on_change()

    async def _advance(self, run: _Run) -> None:
        store, batch_id = self._store, run.batch_id
        status = (await asyncio.to_thread(store.get, run.owner, batch_id)).status
        if status not in LIVE:
            return
        path = await asyncio.to_thread(store.input_path, batch_id)
        if status == Status.VALIDATING:
            found, errors = await asyncio.to_thread(_read, path, run.endpoint, store.limits)
            if errors:
                await asyncio.to_thread(store.fail, batch_id, errors)
                logger.info("%s failed: %s", batch_id, errors[0].message)
                return
            await asyncio.to_thread(store.begin, batch_id, found)
            status = (await asyncio.to_thread(store.get, run.owner, batch_id)).status
        if status == Status.CANCELLING:
            run.reason = Status.CANCELLED
        if status == Status.IN_PROGRESS:
            await self._rows(run, path)
        if run.reason is None:
            left = await asyncio.to_thread(store.pending, batch_id)
            if left:
                return  # the server ends
        await asyncio.to_thread(store.finish, batch_id, run.reason or Status.COMPLETED)
        logger.info("%s is over", batch_id)

    async def _rows(self, run: _Run, path: Path) -> None:
        left = await asyncio.to_thread(self._store.pending, run.batch_id)
        self.counts.pending += len(left)
        begun = 0
        tasks: set[asyncio.Task[None]] = set()
        try:
            for row in left:
                await self._places.acquire()
                if run.reason is not None or self._stopping.is_set():
                    self._places.release()
                    break
                begun += 1
                self.counts.pending -= 1
                task = asyncio.create_task(self._row(run, path, row))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            self.counts.pending -= len(left) - begun
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _row(self, run: _Run, path: Path, row: Row) -> None:
        """One row, to its committed result; it has none where the batch or the server ends."""
        self.counts.running += 1
        try:
            body = await asyncio.to_thread(self._store.row_body, path, run.batch_id, row)
            request_id = f"batch-{row_hash(run.batch_id, row.number):016x}"
            response = await self._response(run, body, request_id)
            if response is None:
                return
            recorded = await self._recorder.record(
                Result(run.batch_id, row, response.status, request_id, response.body)
            )
            if recorded and response.status < 400:
                self.counts.done += 1
            elif recorded:
                self.counts.failed += 1
            if self._on_change is not None:
                self._on_change()
        finally:
            self.counts.running -= 1
            self._places.release()

    async def _response(self, run: _Run, body: bytes, request_id: str) -> Response | None:
        wait = 1.0
        while run.reason is None and not self._stopping.is_set():
            work = asyncio.ensure_future(self._execute(run.endpoint, body, run.owner, request_id))
            run.works.add(work)
            try:
                response = await work
            except asyncio.CancelledError:
                if not work.cancelled():
                    work.cancel()
                    raise
                return None
            finally:
                run.works.discard(work)
            if response.status not in TRY_AGAIN:
                return response
            pause = min(response.retry_after or wait, _LONGEST_WAIT)
            wait = min(wait * 2, _LONGEST_WAIT)
            await _first(pause, run.changed)
        return None


def _read(path: Path, endpoint: str, limits: Limits) -> tuple[list[Row], list[LineError]]:
    try:
        return read_rows(path, endpoint, limits)
    except FileNotFoundError:
        return [], [LineError("missing_input_file", "the input file was deleted")]


async def _first(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
