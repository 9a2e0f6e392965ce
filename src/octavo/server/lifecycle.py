"""From a plan to a running server, and its end.

Owns: start and drain, signals, exit codes.
Does not know: routes, or how a model is found and planned (deploy).

The socket is bound and answers while the model loads: /health 200, /ready 503, generation 503.
The first SIGTERM or SIGINT drains: /ready and new requests get 503, running ones have
`shutdown_timeout` seconds and then end with an explicit error; the exit code is 0. A second signal
ends at once. `POST /drain` does the same as the first signal, with a deadline of its own, which a
further one moves. An engine that cannot recover ends the server with exit code 3, an event loop
that is stuck with 4 (watchdog).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from starlette.applications import Starlette

from octavo.config import Options
from octavo.engine.client import AsyncEngine
from octavo.engine.launch import EngineProcess
from octavo.engine.messages import EngineConfig
from octavo.model.info import ModelInfo
from octavo.server.app import build_app
from octavo.server.auth import Key, check_exposure, load_keys
from octavo.server.batching import Batching, open_store
from octavo.server.port import bind, url_of
from octavo.server.protocol import BoundedProtocol
from octavo.server.record import configure_logging
from octavo.server.serving import Serving, build_serving
from octavo.server.watchdog import LoopWatchdog

logger = logging.getLogger("octavo.server")

ENGINE_FAILED = 3
"""Exit code when the engine is beyond recovery."""
FLUSH_TIMEOUT = 5
"""Seconds that answers which have ended get to reach their clients."""
BACKLOG = 2048
_FIRST = asyncio.FIRST_COMPLETED

Started = Callable[[str, bool], None]
"""Gets the URL, and whether the model has a chat template."""


def run_server(
    options: Options,
    model: ModelInfo,
    engine: EngineConfig,
    generation: Mapping[str, Any],
    *,
    bound: socket.socket | None = None,
    started: Started | None = None,
    spawn: Callable[[], EngineProcess] = EngineProcess,
    loading: Callable[[int, int], None] | None = None,
) -> int:
    """Serve until a signal or a failure; returns the exit code.

    `engine` and `generation` are what was planned (`deploy.Deployment`). `bound` is a socket from
    `bind`; without one it is made here. `started` is called with the URL once requests are served;
    `spawn` makes engine processes; `loading` is told how many bytes of the weights are packed.
    Raises PublicAddressError, KeyFileError, PortInUse, TokenizerError, ChatError for what can be
    known before anything is loaded, BatchSetupError, and EngineStartError.
    """
    configure_logging(options.log_level, options.log_format)
    keys = load_keys(options.api_key, options.api_key_file)
    check_exposure(options.host, keys, options.allow_public)
    with bound or bind(options.host, options.port) as listening:
        listening.listen(BACKLOG)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                _serve(options, model, engine, generation, keys, listening, started, spawn, loading)
            )


async def _serve(
    options: Options,
    model: ModelInfo,
    engine_config: EngineConfig,
    generation: Mapping[str, Any],
    keys: tuple[Key, ...],
    listening: socket.socket,
    started: Started | None,
    spawn: Callable[[], EngineProcess],
    loading: Callable[[int, int], None] | None,
) -> int:
    engine = AsyncEngine(
        engine_config,
        watchdog_timeout=options.watchdog_timeout,
        crash_dir=Path(options.crash_dir) if options.crash_dir else None,
        spawn=spawn,
        loading=loading,
    )
    store = open_store(options)
    starting = asyncio.create_task(engine.start(), name="engine start")
    await asyncio.sleep(0)  # the process is there now, and loads while the tokenizer is read here
    try:
        serving = build_serving(options, model, engine_config, generation, engine)
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    app = build_app(
        serving, keys, options.allowed_origins, options.max_body_size, store,
        options.batch_max_in_flight,
    )  # fmt: skip
    server = http_server(app)
    http = asyncio.create_task(server.serve([listening]), name="http")
    life = Lifecycle(serving, options.shutdown_timeout, app.state.batching)
    try:
        with life.signals(), LoopWatchdog(options.watchdog_timeout):
            return await life.run(starting, http, url_of(listening), started)
    finally:
        server.should_exit = True
        await asyncio.gather(http, return_exceptions=True)


def http_server(app: Starlette) -> uvicorn.Server:
    """uvicorn as we use it: bounded heads, no logs and no signal handling of its own."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=FLUSH_TIMEOUT,
    )
    return _Server(config)


class Lifecycle:
    """One server's way from loading to its end."""

    def __init__(
        self, serving: Serving, shutdown_timeout: float, batching: Batching | None = None
    ) -> None:
        self._batching = batching
        self._serving = serving
        self._timeout = shutdown_timeout
        self._ends: float | None = None
        """When draining ends, on the loop's clock."""
        self._moved = asyncio.Event()
        self._drain = asyncio.Event()
        self._end_now = asyncio.Event()
        serving.begin_drain = self.drain

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        for one in caught:
            loop.add_signal_handler(one, self.stop)
        try:
            yield
        finally:
            for one in caught:
                loop.remove_signal_handler(one)

    def stop(self) -> None:
        """The first call drains, the second ends at once."""
        if self._drain.is_set():
            self._end_now.set()
        else:
            self.drain(None)

    def drain(self, timeout: float | None) -> float:
        """Begin to drain, or move the deadline; returns the seconds that are left. Without a
        timeout it is the configured one, or the one that was set."""
        now = asyncio.get_running_loop().time()
        if timeout is not None or self._ends is None:
            self._ends = now + (self._timeout if timeout is None else timeout)
            self._moved.set()
        self._serving.draining = True
        if self._batching is not None:
            self._batching.runner.stop()
        self._drain.set()
        return max(0.0, self._ends - now)

    async def run(
        self,
        starting: Awaitable[None],
        http: asyncio.Task[None],
        url: str,
        started: Started | None,
    ) -> int:
        """Returns the exit code once nothing is left to do; the engine is closed then. `starting`
        is the engine's start; what it raises is raised here."""
        engine = self._serving.engine
        try:
            if await self._first(starting, http):
                if self._batching is not None:
                    self._batching.runner.start()
                if started is not None:
                    started(url, self._serving.template is not None)
                await self._first(engine.failed.wait(), http)
            if http.done():
                http.result()
            if engine.failed.is_set():
                logger.error("the engine cannot recover; the server ends")
                return ENGINE_FAILED
            await self._finish_running()
            return 0
        finally:
            self._serving.draining = True
            await engine.close()
            if self._batching is not None:
                await self._batching.close()

    async def _first(self, work: Awaitable[object], other: asyncio.Task[None]) -> bool:
        """Waits for `work` (which is cancelled otherwise), the other task, or a signal; whether it
        was `work`. Raises what `work` raises."""
        task = asyncio.ensure_future(work)
        drain = asyncio.ensure_future(self._drain.wait())
        try:
            await asyncio.wait({task, drain, other}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            task.result()
            return True
        finally:
            for one in (task, drain):
                one.cancel()
            await asyncio.gather(task, drain, return_exceptions=True)

    async def _finish_running(self) -> None:
        loop = asyncio.get_running_loop()
        drained = asyncio.ensure_future(self._serving.engine.drain(None))
        now = asyncio.ensure_future(self._end_now.wait())
        while not (drained.done() or now.done()):
            left = 0.0 if self._ends is None else max(0.0, self._ends - loop.time())
            logger.info("draining: running requests have %.0f s", left)
            self._moved.clear()
            moved = asyncio.ensure_future(self._moved.wait())
            await asyncio.wait({drained, now, moved}, timeout=left, return_when=_FIRST)
            if not moved.done():
                moved.cancel()
                break
        if not (drained.done() and drained.result()):
            logger.warning("ending requests that are still running")
        for one in (drained, now):
            one.cancel()
        await asyncio.gather(drained, now, return_exceptions=True)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling; ours is in `Lifecycle`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
