"""A client's messages in the shape that chat templates expect.

Owns: normalising OpenAI messages: content parts, null content, roles, tool-call arguments.
Does not know: templates (chat) beyond the two facts that it is told about one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.text.errors import ChatError

Message = dict[str, Any]

PART_JOINER = "\n"
"""Between the text parts of one message, for a template that takes content as one string."""
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def normalize(
    messages: Sequence[Mapping[str, Any]], *, parts: bool, developer: bool
) -> list[Message]:
    """Copies of `messages` for a template. `parts`: it takes content as a list of parts, else the
    texts are joined by a newline (case A16). `developer`: it knows that role, else it becomes
    "system".

    Raises ChatError naming the message (and part) at fault: an unknown shape, a part that is not
    text, null content of a message that calls no tool.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ChatError("messages must be a list with at least one message")
    return [
        _message(message, f"messages[{i}]", parts, developer) for i, message in enumerate(messages)
    ]


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """The leading system message put in front of the first user message, for templates that know
    no system role (case A17). Messages of string content only."""
    head, *rest = messages
    if head["role"] != "system":
        return list(messages)
    for i, message in enumerate(rest):
        if message["role"] == "user":
            content = f"{head['content']}\n\n{message['content']}"
            return [*rest[:i], {**message, "content": content}, *rest[i + 1 :]]
    return [{**head, "role": "user"}, *rest]


def _message(message: Any, where: str, parts: bool, developer: bool) -> Message:
    if not isinstance(message, Mapping):
        raise ChatError(f"{where} must be an object with role and content", where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ChatError(f"{where}.role must be a non-empty string", f"{where}.role")
    result = {key: value for key, value in message.items() if value is not None}
    result["role"] = "system" if role == "developer" and not developer else role
    if message.get("tool_calls"):
        result["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    calls = bool(message.get("tool_calls") or message.get("function_call"))
    result["content"] = _content(message.get("content"), f"{where}.content", parts, calls)
    return result


def _content(content: Any, where: str, parts: bool, calls: bool) -> str | list[Message]:
    if isinstance(content, str):
        return content
    if content is None:
        if calls:
            return ""
        raise ChatError(
            f"{where} must be text; only a message with tool_calls may have none", where
        )
    if not isinstance(content, Sequence):
        raise ChatError(f"{where} must be a string or a list of parts", where)
    texts = [_text(part, f"{where}[{i}]") for i, part in enumerate(content)]
    if parts:
        return [{"type": "text", "text": text} for text in texts]
    return PART_JOINER.join(texts)


def _text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _TEXT_PARTS:
        raise ChatError(
            f"{where} has type {kind!r:.40}, but this model takes text only: "
            'parts must be {"type": "text", "text": "..."}',
            where,
        )
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise ChatError(f"{where}.text must be a string", where)
    return text


def _tool_calls(calls: Any, where: str) -> list[Message]:
    """OpenAI writes a call's arguments as JSON in a string; templates want the object."""
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise ChatError(f"{where} must be a list", where)
    return [_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ChatError(f"{where} must have a function with a name", where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            message = f"{where}.function.arguments is not valid JSON: {error}"
            raise ChatError(message, f"{where}.function.arguments") from error
        except RecursionError:
            message = f"{where}.function.arguments is nested too deeply"
            raise ChatError(message, f"{where}.function.arguments") from None
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}
