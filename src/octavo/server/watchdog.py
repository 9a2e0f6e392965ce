"""The end of a server whose event loop is stuck.

Owns: a thread that looks whether the loop still turns, and what is done if it does not.
Does not know: the engine; its own watchdog (engine.client) lives on the loop, and so does /health.

A loop that does not turn answers no probe, ends no request and hears no signal, so nothing but the
end of the process helps: the stacks are written to stderr, and the exit code is API_STUCK. Whoever
supervises the server starts it again; the engine process goes with its parent.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

API_STUCK = 4
"""Exit code when the event loop of the API process is stuck."""
LOOKS = 4
"""So many looks in a row must find that it has not turned: after the machine slept it has not
turned either, but does by the second look."""


def end_process() -> NoReturn:
    print("octavo: the event loop is stuck; the server ends. Stacks:", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(sys.stderr)
    os._exit(API_STUCK)


class LoopWatchdog:
    """Watches the running loop while the context lasts: `stuck` is called (in the thread) when it
    has not turned for `timeout` seconds."""

    def __init__(self, timeout: float, stuck: Callable[[], None] = end_process) -> None:
        self._interval = timeout / LOOKS
        self._stuck = stuck
        self._over = threading.Event()
        self._turned = threading.Event()

    def __enter__(self) -> LoopWatchdog:
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._watch, args=(loop,), name="loop watchdog", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        missed = 0
        while not self._over.is_set():
            self._turned.clear()
            try:
                loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:
                return  # it is closed
            self._over.wait(self._interval)
            missed = 0 if self._turned.is_set() else missed + 1
            if missed >= LOOKS and not self._over.is_set():
                self._stuck()
                return
