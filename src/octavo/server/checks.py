"""What is refused before anything is done: fields that this server understands but does not offer,
and fields that do not go together.

Owns: those checks. A field that would change the answer is never accepted and ignored.
Does not know: ranges (core.params) or generation.
"""

from __future__ import annotations

from octavo.core.params import ParamError
from octavo.server.types import NULL, ChatRequest, CompletionRequest, OpenAIFields


def check_completion(body: CompletionRequest) -> None:
    _check_common(body)
    if body.suffix:
        raise ParamError("suffix", "suffix is not supported")
    if body.stream and body.prompt_logprobs is not None:
        raise ParamError(
            "prompt_logprobs", "prompt_logprobs cannot be streamed; echo with logprobs can"
        )


def check_chat(body: ChatRequest) -> None:
    _check_common(body)
    if body.tools and bytes(body.tool_choice) != b'"none"':
        raise ParamError(
            "tools", 'tools are not supported; leave them out or send tool_choice "none"'
        )
    if body.functions:
        raise ParamError("functions", "functions are not supported")
    if body.chat_template != NULL:
        raise ParamError(
            "chat_template",
            "a request may not bring a chat template; the server has --chat-template",
        )
    if body.modalities not in (None, ["text"]):
        raise ParamError("modalities", 'modalities may only be ["text"]')
    if body.top_logprobs is not None and not body.logprobs:
        raise ParamError("top_logprobs", "top_logprobs needs logprobs: true")


def _check_common(body: OpenAIFields) -> None:
    if body.stream_options is not None and not body.stream:
        raise ParamError("stream_options", "stream_options needs stream: true")
    if body.response_format is not None and body.response_format.type != "text":
        raise ParamError(
            "response_format",
            f"response_format of type {body.response_format.type!r:.40} is not supported; "
            "only text is",
        )
