"""What can go wrong with a model before it runs: one error type with a stable code and a hint.

Owns: `ModelError`.
Does not know: which part raises it, or how it is shown (cli, server).
"""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be found, fetched, read or supported.

    The message begins with the cause in one line: what was found, where, and what was expected.
    `code` is stable for programs; `hint` says what to do about it.
    """

    def __init__(self, message: str, code: str = "model_error", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message}\n{self.hint}" if self.hint else message
