"""From chat messages to the ids of a prompt.

Owns: the forms a message may have, and rendering off the loop.
Does not know: templates (text.chat), sampling, responses.

Content parts of type text are joined without a separator (case A16).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.core.params import ParamError
from octavo.server.checks import ROLES
from octavo.server.errors import ApiError
from octavo.server.prompts import INLINE_CHARS, encode
from octavo.server.serving import Serving
from octavo.server.types import Message
from octavo.text.errors import ChatError


async def chat_prompt(
    serving: Serving,
    messages: Sequence[Message],
    add_generation_prompt: bool,
    kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """The ids of the rendered conversation; the template writes BOS itself where it wants one."""
    if serving.template is None:
        raise ApiError(
            400,
            "The model has no chat template. Give one with --chat-template, or use "
            "/v1/completions.",
            code="no_chat_template",
        )
    conversation = [_message(message, index) for index, message in enumerate(messages)]
    chars = sum(len(message["content"] or "") for message in conversation)
    try:
        if chars <= INLINE_CHARS:
            text = serving.template.render(
                conversation, add_generation_prompt=add_generation_prompt, **(kwargs or {})
            )
        else:
            text = await asyncio.to_thread(
                serving.template.render,
                conversation,
                add_generation_prompt=add_generation_prompt,
                **(kwargs or {}),
            )
    except ChatError as error:
        raise ApiError(400, str(error), error.param) from None
    ids = await encode(text, serving.tokenizer, serving.max_model_len, False)
    if not ids:
        raise ParamError("messages", "the rendered prompt is empty")
    return ids


def _message(message: Message, index: int) -> dict[str, Any]:
    """A message as templates see it: text content in one string, no absent keys."""
    where = f"messages[{index}]"
    if message.role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise ParamError(f"{where}.role", f"the role {message.role!r:.40} is none of {known}")
    plain: dict[str, Any] = msgspec.to_builtins(message)
    plain["content"] = _content(message, where)
    if plain["content"] is None and not message.tool_calls:
        if message.role != "assistant":
            raise ParamError(f"{where}.content", f"{where}.content is missing")
        plain["content"] = ""
    return plain


def _content(message: Message, where: str) -> str | None:
    if message.content is None or isinstance(message.content, str):
        return message.content
    texts = []
    for number, part in enumerate(message.content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "input_text", "refusal"):
            raise ParamError(
                f"{where}.content[{number}]",
                f"content parts of type {part.type!r:.40} are not supported: this model reads text",
            )
        if text is None:
            raise ParamError(f"{where}.content[{number}]", "the part has no text")
        texts.append(text)
    return "".join(texts)
