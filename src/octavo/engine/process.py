"""The engine process: `python -m octavo.engine.process <socket fd> <memory fd> <parent pid>`.

Owns: the life of the process: signals, loading, the loop over frames and steps, its last words.
Does not know: who is at the other end, or what happens in a step (engine_core).

    Start --> load (Loading ...), warm up --> Ready
          --> [ frames in | step | one Tokens frame out ]* --> EOF: exit

Exit codes: 0 when the client has gone or asked for it, 1 after a Fatal frame.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

import msgspec

from octavo import numa
from octavo.core.request import Output, Refused
from octavo.engine.build import build_engine_core
from octavo.engine.channel import BlockingChannel, ChannelClosed, FrameError
from octavo.engine.engine_core import EngineCore
from octavo.engine.messages import (
    Abort,
    Control,
    EngineConfig,
    EngineStats,
    Fatal,
    Loading,
    Ready,
    Refusal,
    Reply,
    Start,
    Submit,
    ToEngine,
    Tokens,
    decode_to_engine,
    encode,
)
from octavo.engine.recorder import Recorder
from octavo.engine.statistics import snapshot
from octavo.engine.step_memory import StepMemory
from octavo.machine import limit_thread_pools, thread_pools_limited

log = logging.getLogger("octavo.engine")

STATS_INTERVAL = 0.25
"""Seconds between snapshots while there is work."""

STORE_INTERVAL = 0.01
"""Seconds between looks at whether an idle engine's tier has room for more."""
LAST_STORES = 2.0
"""Seconds that blocks on their way to the tier get when the engine ends."""

EARLY = ("octavo.model.runner", "octavo.ops.cpu")
_PR_SET_PDEATHSIG = 1


class EngineLoop:
    """Frames in, steps, frames out, until the client goes."""

    def __init__(self, channel: BlockingChannel, core: EngineCore, config: EngineConfig) -> None:
        self._channel = channel
        self._core = core
        self._model = config.served_name
        self._outputs: list[Output] = []
        self._refused: list[Refusal] = []
        self._steps = 0
        self._reported = 0.0
        self._idle_reported = False
        self._stopping = False

    def run(self) -> None:
        """Returns when asked to shut down; raises ChannelClosed when the client has gone."""
        self._report()
        while not self._stopping:
            for frame in self._channel.receive(self._patience()):
                self._handle(frame)
                self._idle_reported = False
            if self._core.has_work or self._core.storing:
                self._outputs += self._core.step()
                self._steps += 1
            self._flush()
            self._report()

    def _patience(self) -> float | None:
        """Seconds to wait for frames: blocks that are to be stored go on while nothing else is."""
        if self._core.has_work:
            return 0
        return STORE_INTERVAL if self._core.storing else None

    def _handle(self, frame: bytes) -> None:
        try:
            message = decode_to_engine(frame)
        except msgspec.ValidationError as error:
            self._refuse_malformed(frame, error)
            return
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Abort):
            self._outputs += self._core.abort(message.request_id, message.choice)
        elif isinstance(message, Control):
            self._channel.send(encode(self._control(message)))

    def _submit(self, message: Submit) -> None:
        try:
            self._core.add(message.submission)
        except Refused as refused:
            self._refuse(
                message.submission.request_id,
                str(refused),
                refused.code,
                refused.param,
                refused.retry_after,
            )

    def _refuse_malformed(self, frame: bytes, error: msgspec.ValidationError) -> None:
        """A submission whose fields have wrong types is refused like any other bad one."""
        try:
            request_id = msgspec.msgpack.decode(frame)["submission"]["request_id"]
        except (msgspec.DecodeError, KeyError, TypeError):
            log.error("a frame that is no message was dropped: %s", error)
            return
        self._refuse(str(request_id), f"the request is malformed: {error}", "invalid_request")

    def _refuse(
        self,
        request_id: str,
        message: str,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self._refused.append(Refusal(request_id, message, code, param, retry_after))

    def _control(self, message: Control) -> Reply:
        result: dict[str, Any] = {}
        if message.op == "stats":
            result = msgspec.structs.asdict(self._snapshot())
        elif message.op == "recorder":
            result = {"steps": [asdict(record) for record in self._core.recorder.read()]}
        elif message.op == "reset_prefix_cache":
            result = {"blocks": self._core.scheduler.reset_prefix_cache()}
        elif message.op == "drain":
            self._core.drain()
        elif message.op == "shutdown":
            self._stopping = True
        else:
            return Reply(message.id, error=f"unknown control operation {message.op!r}")
        return Reply(message.id, result)

    def _flush(self) -> None:
        if self._outputs or self._refused:
            tokens = Tokens(self._model, self._steps, self._outputs, self._refused)
            self._channel.send(encode(tokens))
            self._outputs, self._refused = [], []

    def _report(self) -> None:
        """Statistics: at the start, now and then while working, and once as soon as the engine
        idles, so that gauges are right then."""
        now = time.monotonic()
        idle = not self._core.has_work and not self._core.storing
        if idle and self._idle_reported:
            return
        if idle or now - self._reported >= STATS_INTERVAL:
            self._channel.send(encode(self._snapshot()))
            # The first step after a rest is told of at once.
            self._reported, self._idle_reported = 0.0 if idle else now, idle

    def _snapshot(self) -> EngineStats:
        return snapshot(self._model, self._core)


def main(arguments: list[str]) -> int:
    socket_fd, memory_fd, parent = (int(argument) for argument in arguments)
    _die_with(parent)
    channel = BlockingChannel(socket.socket(fileno=socket_fd))
    memory = StepMemory(memory_fd)
    try:
        _import_early()
        start = _await_start(channel)
        return _serve(channel, memory, start.config)
    except ChannelClosed:
        return 0  # the client has gone: nobody is left to tell


def _die_with(parent: int) -> None:
    """The engine lives no longer than its client. Ctrl-C and a service manager's SIGTERM reach
    the whole group: the client drains, so the engine must not react."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)  # it died before the line above


def _import_early() -> None:
    """What loading a model needs, while the client may still be looking for one. Not where the
    thread pools of numpy are unlimited: they read their limits when it is imported."""
    if thread_pools_limited(os.environ):
        for name in EARLY:
            importlib.import_module(name)


def _await_start(channel: BlockingChannel) -> Start:
    while True:
        for frame in channel.receive(None):
            message: ToEngine = decode_to_engine(frame)
            if isinstance(message, Start):
                return message


def _serve(channel: BlockingChannel, memory: StepMemory, config: EngineConfig) -> int:
    """Loads, says Ready and runs. Whatever ends it is said in a Fatal frame."""
    try:
        began = time.monotonic()
        limit_thread_pools(config.threads, os.environ)
        node = numa.stay_on_one_node(config.threads, numa.nodes())
        if node is not None:
            log.info("threads and memory stay on one NUMA node, of %d processors", len(node))
        # One thread sends at a time: while others pack and report, this one waits for them.
        core, loaded = build_engine_core(
            config,
            recorder=Recorder(memory.ring),
            mark=memory.write_ids,
            progress=lambda done, total: channel.send(encode(Loading(done, total))),
        )
        info = {
            **loaded.describe(),
            "load_seconds": time.monotonic() - began,
            "pid": os.getpid(),
        }
        channel.send(encode(Ready(config.served_name, info)))
        try:
            EngineLoop(channel, core, config).run()
        finally:
            core.close(LAST_STORES)
        return 0
    except (ChannelClosed, FrameError):
        raise
    except Exception as error:
        # Typed errors explain themselves; for the others, whoever reads the log needs the trace.
        typed = isinstance(getattr(error, "code", None), str)
        log.log(logging.DEBUG if typed else logging.ERROR, "the engine ends", exc_info=error)
        channel.send(encode(_last_words(error)))
        return 1


def _last_words(error: BaseException) -> Fatal:
    """Typed errors (a message, `code` and `hint`) keep what they say."""
    code = getattr(error, "code", None)
    if isinstance(error, MemoryError):
        return Fatal(f"out of memory: {error}", "out_of_memory")
    if isinstance(code, str):
        hint = getattr(error, "hint", None)
        return Fatal(str(error.args[0] if error.args else error), code, hint or None)
    return Fatal(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    sys.exit(main(sys.argv[1:]))
