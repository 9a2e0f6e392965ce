"""What is refused before anything is done: fields that this server understands but does not offer,
and fields that do not go together.

Owns: those checks. A field that would change the answer is never accepted and ignored.
Does not know: ranges (core.params) or generation.
"""

from __future__ import annotations

from typing import Any

from octavo.core.params import ParamError
from octavo.server.types import ChatRequest, CompletionRequest, OpenAIFields

MAX_MESSAGES = 8192
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def check_completion(body: CompletionRequest) -> None:
    _check_common(body, body.response_format)
    if body.suffix:
        raise ParamError("suffix", "suffix is not supported")


def check_chat(body: ChatRequest) -> None:
    _check_common(body, body.response_format)
    if not body.messages:
        raise ParamError("messages", "messages is empty")
    if len(body.messages) > MAX_MESSAGES:
        raise ParamError(
            "messages", f"messages has {len(body.messages)}; the limit is {MAX_MESSAGES}"
        )
    if body.tools and body.tool_choice != "none":
        raise ParamError(
            "tools", 'tools are not supported; leave them out or send tool_choice "none"'
        )
    if body.functions:
        raise ParamError("functions", "functions are not supported")
    if body.chat_template is not None:
        raise ParamError(
            "chat_template",
            "a request may not bring a chat template; the server has --chat-template",
        )
    if body.modalities not in (None, ["text"]):
        raise ParamError("modalities", 'modalities may only be ["text"]')
    if body.top_logprobs is not None and not body.logprobs:
        raise ParamError("top_logprobs", "top_logprobs needs logprobs: true")


def _check_common(body: OpenAIFields, response_format: Any) -> None:
    if body.stream_options is not None and not body.stream:
        raise ParamError("stream_options", "stream_options needs stream: true")
    if response_format is None:
        return
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind != "text":
        raise ParamError(
            "response_format",
            f"response_format of type {kind!r:.40} is not supported; only text is",
        )
