"""Chat templates: a conversation to the prompt that the model was trained on.

Owns: `ChatTemplate`: what a template's source says about itself, its variables, rendering.
Does not know: tokenizers' files, tokenising the result, or HTTP.

The variables and rules are those of transformers' `apply_chat_template`. The result is encoded
with `add_special_tokens=False`: a template writes BOS itself where the model wants one (case A18).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError

from octavo.text.errors import ChatError
from octavo.text.messages import Message, fold_system, normalize
from octavo.text.sandbox import Budget, Sandbox

NO_TEMPLATE = (
    "this model has no chat template, so it takes no messages: give one with --chat-template FILE, "
    "or send a prompt to /v1/completions"
)
_MAX_SOURCE_CHARS = 1_000_000
_MAX_WORK = 32_000_000
"""Characters and steps of one rendering: some ten times what a prompt of a million tokens needs."""
_MAX_SECONDS = 5.0
_TEMPLATE_FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the last message in the rendering; the trailing space tells whether the template
trims."""
_RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "conversation", "chat_template"),
        *("add_generation_prompt", "continue_final_message", "tokenize", "tokenizer"),
        *("padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("tokenizer_kwargs", "return_assistant_tokens_mask"),
    }
)
"""Names that transformers gives a meaning of its own; a client may not set them."""


class ChatTemplate:
    """One compiled template.

    `named_tokens` are the texts of special tokens by the names that templates use (`bos_token`).
    `tool_source` is the variant for requests with tools, where the model has one. `fold_system`
    puts a leading system message into the first user message, for models that know no system role.
    `now` is the date for `strftime_now`. Raises ChatError for a template that does not compile, so
    that a broken one fails at the start (case A17). Safe to use from several threads.
    """

    def __init__(
        self,
        source: str,
        named_tokens: Mapping[str, str] | None = None,
        *,
        tool_source: str | None = None,
        fold_system: bool = False,
        now: Callable[[], datetime] = datetime.now,
        max_work: int = _MAX_WORK,
        max_seconds: float = _MAX_SECONDS,
    ) -> None:
        self._sandbox = Sandbox(now)
        self._plain = _Compiled(self._sandbox, source)
        self._with_tools = (
            self._plain if tool_source is None else _Compiled(self._sandbox, tool_source)
        )
        self._named_tokens = dict(named_tokens or {})
        self._fold_system = fold_system
        self._limits = (max_work, max_seconds)
        self._reserved = _RESERVED | self._sandbox.globals.keys() | self._named_tokens.keys()

    @property
    def takes_parts(self) -> bool:
        """Whether the template goes through the parts of a message's content by itself."""
        return self._plain.takes_parts

    @property
    def variables(self) -> frozenset[str]:
        """The names that a client may set for this template."""
        names = self._plain.variables | self._with_tools.variables
        return frozenset(name for name in names - self._reserved if not name.startswith("_"))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages` as OpenAI writes them (they are not changed).

        `continue_final_message` leaves the last message open, so that the model goes on with it.
        `variables` (chat_template_kwargs) are handed to the template if it uses them; those it
        does not know are ignored, reserved ones refused. Raises ChatError: with the template's own
        words where it refuses the messages, else with what is wrong; also beyond the limits of
        work and time (case D10).
        """
        compiled = self._with_tools if tools else self._plain
        if continue_final_message and add_generation_prompt:
            raise ChatError(
                "continue_final_message and add_generation_prompt exclude each other; "
                "set add_generation_prompt to false",
                "continue_final_message",
            )
        own = self._checked(variables or {})
        prepared = normalize(
            messages,
            parts=compiled.takes_parts and not self._fold_system,
            developer=compiled.knows_developer,
        )
        if self._fold_system:
            prepared = fold_system(prepared)
        if compiled.needs_parts:
            prepared = [_as_parts(message) for message in prepared]
        final = _mark_end(prepared[-1]) if continue_final_message else ""
        context = {
            **self._named_tokens,
            **{name: value for name, value in own.items() if name in compiled.variables},
            "messages": prepared,
            "tools": tools or None,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        if continue_final_message:
            context["continue_final_message"] = True
        text = self._run(compiled, context)
        return _cut_at_mark(text, final) if continue_final_message else text

    def _checked(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in variables:
            if name in self._reserved or name.startswith("_"):
                raise ChatError(
                    f"chat_template_kwargs may not set {name!r}: the name is reserved",
                    "chat_template_kwargs",
                )
        return variables

    def _run(self, compiled: _Compiled, context: dict[str, Any]) -> str:
        try:
            return self._sandbox.render(compiled.template, context, Budget(*self._limits))
        except (jinja2.UndefinedError, SecurityError, *_TEMPLATE_FAULTS) as error:
            # A template is a program: it may fail like one on messages it was not written for.
            kind = type(error).__name__
            message = f"the chat template fails on these messages: {kind}: {error}"
            raise ChatError(message) from error
        except jinja2.TemplateError as error:
            raise ChatError(f"the chat template refuses these messages: {error}") from error


class _Compiled:
    """A template and what its syntax tree tells about it."""

    def __init__(self, sandbox: Sandbox, source: str) -> None:
        if len(source) > _MAX_SOURCE_CHARS:
            raise ChatError(
                f"the chat template has {len(source)} characters; the limit is {_MAX_SOURCE_CHARS}",
                "chat_template",
            )
        try:
            tree = sandbox.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            self.takes_parts = _iterates_content(tree)
            # A template that never asks whether content is a string has only lists in mind.
            asks = any(test.name == "string" for test in tree.find_all(nodes.Test))
            self.needs_parts = self.takes_parts and not asks
            constants = tree.find_all(nodes.Const)
            self.knows_developer = any(constant.value == "developer" for constant in constants)
            self.template = sandbox.compile_bounded(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ChatError(
                f"the chat template does not compile: line {error.lineno}: {error.message}",
                "chat_template",
            ) from error
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatError(
                f"the chat template does not compile: {error}", "chat_template"
            ) from error


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether a template has a loop over a message's `content` (directly, or by a variable or
    macro argument that holds it), as vLLM finds out."""
    holders = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, set()):
            holders.add(assign.target.name)
    return any(_is_content(loop.iter, holders) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, holders: set[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in holders


def _as_parts(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return {**message, "content": content}


def _mark_end(message: Message) -> str:
    """Puts the mark behind the last text of `message` (a copy); returns that text."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _TAG
        return content
    if not content:
        raise ChatError("continue_final_message needs text in the last message", "messages")
    text: str = content[-1]["text"]
    content[-1]["text"] = text + _TAG
    return text


def _cut_at_mark(rendered: str, final: str) -> str:
    """The rendering up to the end of the last message. A template that trims has removed the
    mark's space, and would have trimmed the text's own."""
    mark = _TAG.strip()
    at = rendered.rfind(mark)
    if at < 0 or final.strip() not in rendered:
        raise ChatError(
            "continue_final_message: the chat template does not write out the last message as it "
            "is, so it cannot be continued",
            "continue_final_message",
        )
    kept = rendered[:at]
    return kept if rendered.startswith(_TAG, at) else kept.rstrip()
