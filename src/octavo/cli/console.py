"""What the commands print to people: numbered steps, progress bars, errors, the ledger.

Owns: the look. All but results goes to standard error, so that standard output holds results only.
Does not know: what the commands do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from octavo.cli.errors import CliError
from octavo.core.memory import MemoryPlan, show_ledger
from octavo.progress import ByteProgress

if TYPE_CHECKING:
    from rich.console import Console


def make_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def table_console(beside: bool = False) -> Console:
    """For tables that are the result: on standard output, or on standard error `beside` results for
    programs. Wide enough for them where there is no terminal."""
    from rich.console import Console

    console = Console(stderr=beside, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 200)
    return console


def show_error(error: CliError) -> None:
    console = make_console()
    console.print("error:", style="bold red", end=" ")
    console.print(error.message, markup=False)
    for line in error.hint.splitlines():
        console.print(f"  {line}".rstrip(), markup=False)


def plan_lines(plan: MemoryPlan) -> list[str]:
    """The ledger, and what it means for people."""
    chats, length = plan.chats()
    held = f"holds {chats:,} chats of {length:,} tokens"
    return [*show_ledger(plan.ledger(), plan.budget), held]


class Steps:
    """Numbered progress: "2/5 Planning memory", with a bar while bytes are on their way.

    Use as a context manager; `begin` ends the step before. Where standard error is no terminal a
    line now and then stands for the bar. `quiet` prints nothing but warnings; those lines then go
    to `say`, if there is one.
    """

    def __init__(
        self, total: int, quiet: bool = False, say: Callable[[str], None] | None = None
    ) -> None:
        self.console = make_console()
        self._total = total
        self._quiet = quiet
        self._number = 0
        lines = say if quiet else lambda line: self.say(f"      {line}")
        self._bytes = ByteProgress(self.console, lines, bar=not quiet)

    def begin(self, text: str) -> None:
        self._bytes.close()
        self._number += 1
        self.say(f"[{self._number}/{self._total}] {text}")

    def say(self, text: str, style: str | None = None) -> None:
        if not self._quiet:
            self.console.print(text, markup=False, style=style)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", markup=False, style="yellow")

    def progress(self, what: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes (None: not known) of `what`."""
        self._bytes.update(what, done, total)

    def __enter__(self) -> Steps:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bytes.close()


def write(text: str) -> None:
    """Result text to standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
