"""The engine as the API process sees it: requests in, streams out, whatever happens between.

Owns: starting, watching, restarting and draining the engine process, and its state of health.
Does not know: HTTP and text, the scheduler and the model, the bytes on the socket (session), or
how far each request has come (book).

    submit --> RequestBook --Submit--> engine process --Tokens--> RequestBook --> RequestStream
                    |  survives a crash:  resubmission  ^
                    +-----------------------------------+
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.core.request import Refused, Submission
from octavo.engine import recorder
from octavo.engine.book import RequestBook
from octavo.engine.budget import RestartBudget
from octavo.engine.errors import EngineStartError, EngineUnavailable
from octavo.engine.health import EngineState, Health
from octavo.engine.launch import EngineProcess
from octavo.engine.messages import (
    Control,
    EngineConfig,
    EngineStats,
    Loading,
    Ready,
    Reply,
    ToClient,
    ToEngine,
    Tokens,
)
from octavo.engine.session import Ending, EngineSession
from octavo.engine.stream import RequestStream
from octavo.engine.totals import Totals

log = logging.getLogger("octavo.engine")

_UNREFUSED = 1024
"""Requests that may be on their way beyond the engine's own bounds: it is the engine that refuses,
for it knows when there will be room. The bound here is for an engine that does not answer."""
_EXIT_PATIENCE = 5.0
"""Seconds that an engine gets to leave by itself when asked to."""


class AsyncEngine:
    """One engine process and its successors. All methods belong to the loop that called `start`.

    `watchdog_timeout`: with work present and no finished step for so many seconds the engine counts
    as stuck; after as long again it is killed and replaced. `restarts` in `restart_window` seconds
    is the budget. `crash_dir`: where crash reports (JSON, without content) go. `max_buffered`: see
    RequestBook. `spawn` makes the process; tests put their own there. `loading` is called with
    (bytes, bytes in all) while the first process loads its weights.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        watchdog_timeout: float = 60.0,
        start_timeout: float = 1800.0,
        restarts: int = 10,
        restart_window: float = 600.0,
        crash_dir: Path | None = None,
        max_buffered: int = 1 << 18,
        spawn: Callable[[], EngineProcess] = EngineProcess,
        loading: Callable[[int, int], None] | None = None,
    ) -> None:
        self.config = config
        self.info: dict[str, Any] = {}
        """What the engine said of itself when it was ready (fingerprint, seconds, backend)."""
        self.failed = asyncio.Event()
        """Set when the start failed or the restart budget is spent: nothing will recover."""
        self._watchdog_timeout = watchdog_timeout
        self._start_timeout = start_timeout
        self._budget = RestartBudget(restarts, restart_window)
        self._crash_dir = crash_dir
        self._spawn = spawn
        self._loading = loading
        self._state = EngineState.LOADING
        self._reason = "the model is being loaded"
        self._draining = False
        self._restarts = 0
        self._stuck_since: float | None = None
        self._steps = -1
        """Of the present process, as it last told."""
        self._session: EngineSession | None = None
        self._opening: EngineSession | None = None
        """The process that is loading."""
        self._closing = asyncio.Event()
        self._book = RequestBook(
            config.served_name,
            config.max_waiting_requests + config.max_num_seqs + _UNREFUSED,
            max_buffered,
            self._send,
        )
        self._totals = Totals(config.served_name)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._controls = 0
        self._tasks: list[asyncio.Task[None]] = []

    # Lifecycle

    async def start(self) -> None:
        """Starts the process and waits until it is ready. Raises EngineStartError. To be cancelled
        is no failure; `close` must follow."""
        try:
            session = await self._launch()
        except Exception as error:
            if not self._closing.is_set():
                self._fail(str(error))
            raise
        self._tasks = [
            asyncio.create_task(self._supervise(session), name="engine supervisor"),
            asyncio.create_task(self._watch(), name="engine watchdog"),
        ]

    async def drain(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        """Takes no more requests and waits for the live ones; whether they all finished."""
        self._draining = True
        try:
            await asyncio.wait_for(self._book.idle.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Ends live requests with an error ("engine_closed"), and the process. A start that is
        under way raises EngineStartError."""
        self._closing.set()
        if self._opening is not None:
            self._opening.process.kill()
        self._book.fail_all("the server is shutting down", "engine_closed")
        session, self._session = self._session, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if session is not None:
            await session.end(_EXIT_PATIENCE)
        if not self.failed.is_set():
            self._state, self._reason = EngineState.FAILED, "the engine is closed"

    # Requests

    def submit(self, submission: Submission) -> RequestStream:
        """Takes a request at any time until drain or close, also while the engine restarts.
        Raises Refused; what only the engine can refuse is raised by the stream instead."""
        if self.failed.is_set() or self._closing.is_set():
            raise Refused(f"the engine is not running: {self._reason}", "engine_failed")
        if self._draining:
            raise Refused(
                "the server is shutting down and takes no new requests", "draining", retry_after=5.0
            )
        now = time.monotonic()
        if self._session is not None and not len(self._book):
            self._session.last_progress = now  # the watchdog's time begins with the work
        if not submission.arrival:
            submission = replace(submission, arrival=now)
        return RequestStream(self._book.add(submission), self._book.abort)

    @property
    def live(self) -> int:
        """Requests that have not finished."""
        return len(self._book)

    # Reports

    def health(self) -> Health:
        if self._draining and self._state is EngineState.READY:
            return Health(EngineState.DRAINING, "draining", self._restarts)
        return Health(self._state, self._reason, self._restarts)

    @property
    def stats(self) -> EngineStats:
        """The latest snapshot; counters run on over restarts."""
        return self._totals.latest

    @property
    def pid(self) -> int | None:
        """The engine process of now; None while none is ready."""
        return None if self._session is None else self._session.process.pid

    async def control(self, op: str, **args: Any) -> dict[str, Any]:
        """Asks the engine process: "stats", "recorder", "reset_prefix_cache". Raises
        EngineUnavailable, also when the process dies before it answers or knows no such `op`."""
        if self._session is None:
            raise EngineUnavailable(f"the engine is {self._state}: {self._reason}")
        self._controls += 1
        number = self._controls
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            self._send(Control(number, op, args))
            return await future
        finally:
            del self._replies[number]

    # What goes to the engine, and what comes

    def _send(self, message: ToEngine) -> None:
        if self._session is not None:
            self._session.send(message)

    def _received(self, message: ToClient) -> None:
        if self._progressed(message):
            self._note_progress()
        if isinstance(message, Tokens):
            self._book.deliver(message)
        elif isinstance(message, EngineStats):
            self._totals.update(message)
        elif isinstance(message, Loading):
            self._load_progressed(message)
        elif isinstance(message, Reply):
            future = self._replies.get(message.id)
            if future is not None and not future.done():
                if message.error is None:
                    future.set_result(message.result)
                else:
                    future.set_exception(EngineUnavailable(message.error))

    def _progressed(self, message: ToClient) -> bool:
        """Whether it shows that work was done: an engine that talks but computes nothing is as
        stuck as a silent one."""
        if isinstance(message, EngineStats):
            before, self._steps = self._steps, message.steps_total
            return before != message.steps_total
        return isinstance(message, Tokens)

    def _note_progress(self) -> None:
        if self._session is not None:
            self._session.last_progress = time.monotonic()
        if self._stuck_since is not None:
            log.warning("the engine works again")
            self._stuck_since = None
            self._state, self._reason = EngineState.READY, "ready"

    def _load_progressed(self, message: Loading) -> None:
        if self._state is not EngineState.LOADING:
            return  # a restart: its reason is told instead
        share = message.done / message.total if message.total else 1.0
        self._reason = f"the model is being loaded ({share:.0%} of its weights)"
        if self._loading is not None:
            self._loading(message.done, message.total)

    # Crashes and restarts

    async def _launch(self) -> EngineSession:
        """A process that is ready and has been given all live requests. Raises
        EngineStartError, with nothing left behind."""
        try:
            session = EngineSession(self._spawn(), self._received)
        except OSError as error:
            raise EngineStartError(
                f"the engine process could not be made: {error}", "engine_spawn_failed"
            ) from error
        self._opening = session
        try:
            ready = await session.start(self.config, self._start_timeout)
        except BaseException:
            await session.end()
            raise
        finally:
            self._opening = None
        self._became_ready(session, ready)
        return session

    def _became_ready(self, session: EngineSession, ready: Ready) -> None:
        before, now = self.info.get("fingerprint"), ready.info.get("fingerprint")
        if self.info and before != now:
            self._book.fail_all(
                f"the engine came back with another numerics fingerprint ({now}, before {before}): "
                "its tokens would not continue the same answer",
                "fingerprint_changed",
            )
        self.info = ready.info
        self._session = session
        session.last_progress = time.monotonic()
        self._steps = -1
        self._state, self._reason = EngineState.READY, "ready"
        self._book.resubmit()

    async def _supervise(self, session: EngineSession) -> None:
        try:
            await self._replace(session)
        except Exception as error:
            # Nobody else would notice that nobody watches any more.
            log.exception("the supervision of the engine failed")
            self._fail(f"the supervision of the engine failed: {error!r}")

    async def _replace(self, session: EngineSession) -> None:
        """A new process whenever one dies, as long as the budget lasts."""
        while True:
            await session.closed.wait()
            self._session = None
            self._note_crash(await session.end(patience=1.0))
            successor = await self._restart()
            if successor is None:
                self._fail(
                    f"the engine was restarted {self._budget.limit} times within "
                    f"{self._budget.window:.0f} s; the last time, {self._reason}"
                )
                return
            session = successor

    async def _restart(self) -> EngineSession | None:
        """Tries until a process is ready; None when the budget is spent."""
        delay = 0.2
        while self._budget.spend(time.monotonic()):
            self._restarts += 1
            try:
                return await self._launch()
            except EngineStartError as error:
                log.error("the engine did not start again: %s", error)
                self._reason = str(error)
            with contextlib.suppress(TimeoutError):  # closing cuts the wait short
                await asyncio.wait_for(self._closing.wait(), delay)
            delay = min(2 * delay, 10.0)
        return None

    def _note_crash(self, ending: Ending) -> None:
        self._state, self._reason = EngineState.RESTARTING, ending.reason
        self._stuck_since = None
        self._totals.restarted()
        log.error("engine process %d died: %s", ending.pid, ending.reason)
        if ending.steps:
            last = ending.steps[-1]
            log.error(
                "its last step, %d, was %s: %d rows, %d tokens",
                last.step, last.state, last.rows, last.tokens,
            )  # fmt: skip
        if self._crash_dir is not None:
            self._write_report(self._crash_dir, ending)
        for future in self._replies.values():
            if not future.done():
                future.set_exception(EngineUnavailable(ending.reason))
        self._book.blame(ending.suspects)

    def _write_report(self, directory: Path, ending: Ending) -> None:
        details: dict[str, object] = {
            "pid": ending.pid,
            "exit_code": ending.exit_code,
            "suspects": ending.suspects,
        }
        name = f"engine-crash-{ending.pid}"
        try:
            path = recorder.dump(directory, name, ending.reason, details, ending.steps)
        except OSError as error:
            log.error("the crash report could not be written: %s", error)
        else:
            log.error("crash report: %s", path)

    def _fail(self, reason: str) -> None:
        """Nothing will recover: every live request ends now."""
        log.error("the engine has failed: %s", reason)
        self._state, self._reason = EngineState.FAILED, reason
        self._book.fail_all(reason, "engine_failed")
        self.failed.set()

    async def _watch(self) -> None:
        """The watchdog: work present means progress, or the process is replaced."""
        limit = self._watchdog_timeout
        while True:
            await asyncio.sleep(limit / 4)
            session, now = self._session, time.monotonic()
            if session is None or not len(self._book) or now - session.last_progress <= limit:
                continue
            if self._stuck_since is None:
                # Killed only after a second look: a stall of our own loop looks the same at first.
                self._stuck_since = now
                self._state = EngineState.STUCK
                self._reason = f"no step was finished for {now - session.last_progress:.1f} s"
                log.error("the engine is stuck: %s", self._reason)
            elif now - self._stuck_since >= limit:
                log.error("the engine stays stuck; process %d is killed", session.process.pid)
                session.process.kill()
