"""The client's view of one engine process, from its start to its end.

Owns: the process with its channel, the handshake, and what is known of its death.
Does not know: requests, or whether another process follows (client).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from octavo.engine.channel import AsyncChannel
from octavo.engine.errors import EngineStartError
from octavo.engine.launch import EngineProcess
from octavo.engine.messages import (
    EngineConfig,
    Fatal,
    Ready,
    ToClient,
    ToEngine,
    decode_to_client,
    encode,
)
from octavo.engine.recorder import Recorder, StepRecord

log = logging.getLogger("octavo.engine")


@dataclass(slots=True)
class Ending:
    """How an engine process ended: its last words if it had any, the requests of the step it died
    in, and what the flight recorder holds."""

    pid: int
    exit_code: int | None
    fatal: Fatal | None
    suspects: list[str] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)

    @property
    def reason(self) -> str:
        if self.fatal is not None:
            return self.fatal.message
        if self.exit_code is not None and self.exit_code < 0:
            name = signal.Signals(-self.exit_code).name
            hint = " (killed: by hand, or for want of memory)" if name == "SIGKILL" else ""
            return f"the engine process was ended by {name}{hint}"
        return f"the engine process exited with code {self.exit_code}"


class EngineSession:
    """`on_message` gets every message after Ready; `last_progress` (time.monotonic) is kept by the
    client: when work was last seen to be done."""

    def __init__(self, process: EngineProcess, on_message: Callable[[ToClient], None]) -> None:
        self.process = process
        self.last_progress = time.monotonic()
        self.closed = asyncio.Event()
        self._settled = asyncio.Event()  # ready, or closed
        self._on_message = on_message
        self._ready: Ready | None = None
        self._fatal: Fatal | None = None
        self._channel: AsyncChannel | None = None

    async def start(self, config: EngineConfig, patience: float) -> Ready:
        """Sends the config and waits until the engine is loaded and warmed up. Raises
        EngineStartError; the process is then on its way out, `end` still has to be called."""
        self.process.load(config)
        self._channel = await AsyncChannel.connect(self.process.socket, self._received, self._lost)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), patience)
        if self._ready is not None:
            return self._ready
        if self._fatal is not None:
            raise EngineStartError(self._fatal.message, self._fatal.code, self._fatal.hint)
        if not self.closed.is_set():
            self.process.kill()
            raise EngineStartError(
                f"the engine was not ready within {patience:.0f} s", "engine_start_timeout"
            )
        code = await self.process.exited(patience=5.0)
        ending = Ending(self.process.pid, code, None)
        raise EngineStartError(f"while loading, {ending.reason}", "engine_died")

    def send(self, message: ToEngine) -> None:
        """Raises FrameError for a message beyond the frame bound."""
        if self._channel is not None:
            self._channel.send(encode(message))

    async def end(self, patience: float = 0.0) -> Ending:
        """Hangs up, gives the process `patience` seconds to leave, and sees to it that it is
        gone. Returns what is known of its end."""
        if self._channel is not None:
            self._channel.close()
        else:
            self.process.socket.close()
        if patience <= 0 or await self.process.exited(patience) is None:
            self.process.kill()
        code = await self.process.exited()
        memory = self.process.memory
        ending = Ending(
            self.process.pid, code, self._fatal, memory.read_ids(), Recorder(memory.ring).read()
        )
        self.process.close()
        return ending

    def _received(self, frame: bytes) -> None:
        try:
            message = decode_to_client(frame)
        except msgspec.MsgspecError as error:
            log.error("the engine sent a frame that is no message: %s", error)
            self.process.kill()
            return
        if isinstance(message, Ready):
            self._ready = message
            self._settled.set()
        elif isinstance(message, Fatal):
            self._fatal = message
        else:
            self._on_message(message)

    def _lost(self) -> None:
        self.closed.set()
        self._settled.set()
