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


async def chat_prompt(
    serving: Serving, messages: Sequence[Message], body: ChatRequest | TokenizeRequest
) -> list[int]:
    """The ids of the rendered conversation; the template writes BOS itself where it wants one."""
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
    ids = await encode(text, serving.tokenizer, serving.max_model_len, False)
    if not ids:
        raise ParamError("messages", "the rendered prompt is empty")
    return ids


def _message(message: Message, index: int) -> dict[str, Any]:
    if message.role not in ROLES:
        known = ", ".join(sorted(ROLES))
        where = f"messages[{index}].role"
        raise ParamError(where, f"the role {message.role!r:.40} is none of {known}")
    plain: dict[str, Any] = msgspec.to_builtins(message)
    return plain


def _size(messages: Sequence[Message]) -> int:
    """Characters of content, about."""
    return sum(
        len(content)
        if isinstance(content := message.content or "", str)
        else sum(len(part.text or "") for part in content)
        for message in messages
    )
