"""The command line. `main` is what the `octavo` command and `python -m octavo` run.

Owns: the entry and the way every error leaves it.
Does not know: the commands (app).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0, or the code of its CliError. A stack trace is printed only at
    --log-level debug."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    from octavo.cli.app import build

    names_a_command = not words[0].startswith("-")
    try:
        code = build(rich_help=names_a_command)(
            args=words, prog_name="octavo", standalone_mode=False
        )
    except BrokenPipeError:
        # The reader of our output went away; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        from octavo.cli.console import show_error
        from octavo.cli.errors import explain

        told = explain(error)
        if told is None or _debugging(words):
            raise
        show_error(told)
        sys.exit(told.code)
    sys.exit(code if isinstance(code, int) else 0)


def _debugging(words: Sequence[str]) -> bool:
    flag = "--log-level debug" in " ".join(words).replace("=", " ")
    return flag or os.environ.get("OCTAVO_LOG_LEVEL") == "debug"
