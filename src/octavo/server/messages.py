"""From chat messages to the ids of a prompt.

Owns: which roles there are, and rendering off the loop.
Does not know: content parts and templates (text.chat), sampling, responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from octavo.core.params import ParamError
from octavo.server.body import decode_field
from octavo.server.errors import ApiError
from octavo.server.prompts import INLINE_CHARS, encode
from octavo.server.serving import Serving
from octavo.server.types import ChatRequest, Message, TokenizeRequest
from octavo.text.chat import NO_TEMPLATE
from octavo.text.errors import ChatError

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
MAX_KWARGS_BYTES = 16 * 1024
MAX_MESSAGES = 8192
MAX_TOOL_CALLS = 1024
"""In one message."""
_OVERHEAD = 16
"""Characters that a message or part counts for beside its text: it costs work, too."""


async def chat_prompt(
    serving: Serving, messages: Sequence[Message], body: ChatRequest | TokenizeRequest
) -> list[int]:
    """The ids of the rendered conversation; the template writes BOS itself where it wants one,
    so special tokens are added only where the client says so."""
    if not messages:
        raise ParamError("messages", "messages is empty")
    if len(messages) > MAX_MESSAGES:
        raise ParamError("messages", f"messages has {len(messages)}; the limit is {MAX_MESSAGES}")
    if serving.template is None:
        raise ApiError(400, NO_TEMPLATE, "messages", "no_chat_template")
    plain = [_message(message, index) for index, message in enumerate(messages)]
    render = partial(
        serving.template.render,
        plain,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=body.continue_final_message is True,
        variables=decode_field(
            body.chat_template_kwargs, dict[str, Any], "chat_template_kwargs", MAX_KWARGS_BYTES
        ),
    )
    try:
        text = render() if _size(messages) <= INLINE_CHARS else await asyncio.to_thread(render)
    except ChatError as error:
        raise ApiError(400, str(error), error.param) from None
    special = body.add_special_tokens is True
    ids = await encode(text, serving.tokenizer, serving.max_model_len, special)
    if not ids:
        raise ParamError("messages", "the rendered prompt is empty")
    return ids


def _message(message: Message, index: int) -> dict[str, Any]:
    if message.role not in ROLES:
        known = ", ".join(sorted(ROLES))
        where = f"messages[{index}].role"
        raise ParamError(where, f"the role {message.role!r:.40} is none of {known}")
    if message.tool_calls and len(message.tool_calls) > MAX_TOOL_CALLS:
        where = f"messages[{index}].tool_calls"
        count = len(message.tool_calls)
        raise ParamError(where, f"{where} has {count} calls; the limit is {MAX_TOOL_CALLS}")
    try:
        plain: dict[str, Any] = msgspec.to_builtins(message)
    except RecursionError:  # only tool calls can be deep; reading them took less of the stack
        where = f"messages[{index}].tool_calls"
        raise ParamError(where, f"{where} is nested too deeply") from None
    return plain


def _size(messages: Sequence[Message]) -> int:
    """Characters of content, about."""
    return sum(
        _OVERHEAD + len(content)
        if isinstance(content := message.content or "", str)
        else sum(_OVERHEAD + len(part.text or "") for part in content)
        for message in messages
    )
