"""Progress of bytes, for whoever waits: a bar on a terminal, a line every few seconds elsewhere.

Owns: the look of both, and when they are shown.
Does not know: what the bytes are, or where they come from.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

EVERY = 3.0
"""Seconds between two lines, and before the first: what is quicker needs none."""


PATIENCE = 0.4
"""Seconds before a bar: a small model is loaded by then, and need not wait for the bar's import."""


class ByteProgress:
    """`update` may be called as often as there is news; `close` (or the context's end) takes the
    bar away. Without a `console` the bar goes to standard error. Where there is no terminal, `say`
    gets a line now and then (None: nothing is said); so also where no `bar` is wanted. Use from one
    thread at a time."""

    def __init__(
        self,
        console: Console | None = None,
        say: Callable[[str], None] | None = None,
        *,
        bar: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._say = say
        self._clock = clock
        terminal = console.is_terminal if console is not None else sys.stderr.isatty()
        self._terminal = terminal and bar
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._first: tuple[float, int] = (0.0, 0)
        """When the first news of this `_what` came, and how many bytes had come by then."""
        self._said = 0.0

    def update(self, what: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes (None: not known) of `what`."""
        now = self._clock()
        if what != self._what:
            self._what, self._first, self._said = what, (now, done), now
        if self._terminal:
            if self._bar is not None or now - self._first[0] >= PATIENCE:
                self._update_bar(what, done, total, now)
        elif self._say is not None and now - self._said >= EVERY:
            self._said = now
            self._say(f"{what}: {_amount(done, total)}, {self._rate(done, now)}")

    def _rate(self, done: int, now: float) -> str:
        began, before = self._first
        return f"{_size((done - before) / (now - began))}/s" if now > began else ""

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
        self._what = ""

    def _update_bar(self, what: str, done: int, total: int | None, now: float) -> None:
        rate = self._rate(done, now)
        if self._bar is None:
            self._bar = _bar(self._console)
            self._task = self._bar.add_task(what, total=total, completed=done, rate=rate)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, description=what, completed=done, total=total, rate=rate)

    def __enter__(self) -> ByteProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bar(console: Console | None) -> Progress:
    # Imported here: it costs a tenth of a second, which only a terminal is worth.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("      {task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        transient=True,
        refresh_per_second=5,
    )


def _amount(done: int, total: int | None) -> str:
    if not total:
        return _size(done)
    return f"{_size(done)} of {_size(total)} ({done / total:.0%})"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
