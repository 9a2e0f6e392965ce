"""What can go wrong with the engine as a whole.

Owns: the typed errors of starting and reaching an engine. One request's faults are not here: they
arrive as `Output.error_code` or `core.request.Refused`.
"""

from __future__ import annotations


class EngineStartError(Exception):
    """The engine could not start. `code` is stable for programs; `hint` says what to do."""

    def __init__(self, message: str, code: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class EngineUnavailable(Exception):
    """No engine answers right now: it is loading, restarting, closed or has failed."""


class EngineFatal(Exception):
    """The engine cannot go on; its process must end. `code` as in `messages.Fatal`."""

    def __init__(self, message: str, code: str = "engine_failure") -> None:
        super().__init__(message)
        self.code = code
