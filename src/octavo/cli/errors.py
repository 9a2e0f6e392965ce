"""The one error of the command line, and what every known failure is turned into.

Owns: `CliError` (message, hint, exit code) and the hints.
Does not know: how it is printed (console), or the commands.
"""

from __future__ import annotations

import errno
import sys

NO_COMPILER = (
    "  Everything works on the numpy reference, but slower, and the last bits of a product may\n"
    "  depend on the batch (not with --row-at-a-time). To build the kernels:\n"
    "  sudo apt-get install -y g++ python3-dev (about 250 MB), then install octavo again."
)

USAGE, FAILURE, INTERRUPTED = 2, 1, 130


class CliError(Exception):
    """What the user is told: `message` says what happened, `hint` (lines) what to do about it."""

    def __init__(self, message: str, hint: str = "", code: int = FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


def explain(error: BaseException) -> CliError | None:
    """The error as the user should see it; None for one that nobody foresaw."""
    from octavo.config import ConfigError
    from octavo.core.memory import DoesNotFit, PlanError
    from octavo.core.params import ParamError

    if isinstance(error, CliError):
        return error
    if isinstance(error, ConfigError):
        return CliError(str(error), error.hint, USAGE)
    if isinstance(error, DoesNotFit):
        return _does_not_fit(error)
    if isinstance(error, PlanError):
        hint = "leave --max-model-len out to take the longest that fits"
        return CliError(str(error), hint, USAGE)
    if isinstance(error, ParamError):
        return CliError(str(error), code=USAGE)
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return CliError("interrupted", code=INTERRUPTED)
    return _of_the_parser(error) or _of_parts(error) or _of_the_system(error)


def _of_the_parser(error: BaseException) -> CliError | None:
    """Errors of use. Their classes lie in click or within typer, by its version: they are known by
    what they have."""
    unknown = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and isinstance(unknown, str):
        from octavo.cli.flags import unknown_flag

        told = unknown_flag(unknown)
        return CliError(str(told), told.hint, USAGE)
    show = getattr(error, "format_message", None)
    context = getattr(error, "ctx", None)
    if show is None:
        return None
    command = getattr(context, "command_path", "octavo")
    return CliError(show(), f"see {command} --help", USAGE)


def _of_parts(error: BaseException) -> CliError | None:
    """Typed errors of the model, the engine, the text and the server."""
    from octavo.engine.errors import EngineFatal, EngineStartError, EngineUnavailable
    from octavo.model.errors import ModelError
    from octavo.text.errors import ChatError, TokenizerError

    if isinstance(error, ModelError | EngineStartError):
        return CliError(str(error.args[0]), error.hint or "")
    if isinstance(error, EngineFatal | EngineUnavailable | ChatError | TokenizerError):
        return CliError(str(error))
    if "octavo.server.batching" in sys.modules:
        from octavo.server.batching import BatchSetupError

        if isinstance(error, BatchSetupError):
            return CliError(str(error), code=USAGE)
    if "octavo.server.auth" in sys.modules:
        # Loaded only by serving; nothing else can have raised these.
        from octavo.server.auth import KeyFileError, PublicAddressError
        from octavo.server.port import PortInUse

        if isinstance(error, PublicAddressError | KeyFileError):
            return CliError(str(error), code=USAGE)
        if isinstance(error, PortInUse):
            return port_in_use(error.host, error.port, error.free)
    return None


def _of_the_system(error: BaseException) -> CliError | None:
    if isinstance(error, ImportError):
        return CliError(
            f"a part of octavo, or of what it needs, cannot be imported: {error}",
            "install octavo again; --log-level debug shows where it fails",
        )
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.ENOSPC:
        return disk_full(error)
    where = f": {error.filename}" if error.filename else ""
    return CliError(f"{error.strerror or error}{where}")


def disk_full(error: OSError) -> CliError:
    where = str(error.filename) if error.filename else "the cache directory's disk"
    return CliError(
        f"no space left on the disk while writing {where}",
        "free some space, or keep models elsewhere: --cache-dir DIR (or OCTAVO_CACHE_DIR)",
    )


def port_in_use(host: str, port: int, free: int | None) -> CliError:
    """`free` is the next port above that is free, if one was found."""
    hint = f"another server may be running; the next free port: --port {free}"
    return CliError(f"port {port} on {host} is in use", hint if free else "choose another --port")


def _does_not_fit(error: object) -> CliError:
    from octavo.core.memory import Change, DoesNotFit, show_bytes, show_ledger

    assert isinstance(error, DoesNotFit)

    def show(change: Change) -> str:
        if change.field == "memory":
            return f"{show_bytes(int(change.value))} of free memory"
        return f"--{change.field.replace('_', '-')} {change.value}"

    lines = show_ledger(error.lines, error.budget)
    changes = [f"  {show(change)}" for change in error.changes]
    told = ["", "any one of these would make it fit:", *changes] if changes else []
    return CliError(f"the model does not fit: {error}", "\n".join([*lines, *told]))
