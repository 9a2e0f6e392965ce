"""What goes wrong with text: one type for tokenizers, one for chat.

Owns: the error types of the text side.
Does not know: HTTP statuses or who is told.
"""

from __future__ import annotations


class TokenizerError(ValueError):
    """A tokenizer cannot be built, or a text cannot be tokenised; the message says why and what
    to do."""


class ChatError(ValueError):
    """A conversation cannot be rendered: the client's messages do not suit the template, or the
    template itself failed. `param` names the request's field where one is at fault."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param
