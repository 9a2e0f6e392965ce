"""Starting the engine process, and ending it for certain.

Owns: the child process, its socket, its shared step memory, and the first word to it.
Does not know: what else is said over the socket (client) or what the child does (process).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys

from octavo.engine.channel import pack_frame
from octavo.engine.messages import EngineConfig, Start, encode
from octavo.engine.step_memory import StepMemory


class EngineProcess:
    """One engine process. Must be made on the thread that lives as long as the engine shall: the
    kernel kills the child when that thread ends (and so also when this process is killed)."""

    def __init__(self, module: str = "octavo.engine.process") -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket = ours
        self.config: EngineConfig | None = None
        """What it was told to load."""
        self.memory = StepMemory.create()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    module,
                    str(theirs.fileno()),
                    str(self.memory.fd),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self.memory.fd),
            )
        except BaseException:
            ours.close()
            self.memory.close()
            raise
        finally:
            theirs.close()

    def load(self, config: EngineConfig) -> None:
        """Tells it what to load, unless it has been told that. A process that is gone already is
        found out by its end of the socket. Raises ValueError where it was told something else."""
        if self.config is not None and self.config != config:
            raise ValueError("the engine process loads something else already")
        if self.config is None:
            self.config = config
            with contextlib.suppress(ConnectionError):
                self.socket.sendall(pack_frame(encode(Start(config))))

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: works on a stopped process too."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    async def exited(self, patience: float | None = None) -> int | None:
        """Waits for the end and returns the exit code (negative: the signal), or None when it
        still runs after `patience` seconds."""
        loop = asyncio.get_running_loop()
        if self._process.poll() is not None:
            return self._process.returncode
        ended = asyncio.Event()
        watch = os.pidfd_open(self._process.pid)
        loop.add_reader(watch, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), patience)
        except TimeoutError:
            return None
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return self._process.wait()

    def close(self) -> None:
        """Frees the shared memory. The socket belongs to whoever connected it."""
        self.memory.close()


class EarlyEngine:
    """A process that is started before it is known what it shall load: it imports its modules while
    the model is found and the memory planned. Called as `AsyncEngine`'s `spawn` it gives that
    process once, and new ones afterwards. Leaving the context ends it if nobody took it."""

    def __init__(self) -> None:
        self._early: EngineProcess | None = EngineProcess()

    def load(self, config: EngineConfig) -> None:
        """Lets the process load that, while this one is still busy."""
        if self._early is not None:
            self._early.load(config)

    def __call__(self) -> EngineProcess:
        early, self._early = self._early, None
        return early or EngineProcess()

    def __enter__(self) -> EarlyEngine:
        return self

    def __exit__(self, *raised: object) -> None:
        early, self._early = self._early, None
        if early is not None:
            early.kill()
            early.socket.close()
            early.close()
