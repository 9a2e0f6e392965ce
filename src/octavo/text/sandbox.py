"""A Jinja environment for templates that nobody vouches for: no escape, and no unbounded work.

Owns: which operations a template may use, and the `Budget` of one rendering.
Does not know: chat (chat), or what the variables mean.

Jinja's immutable sandbox keeps a template from Python's internals, but not from running for ever or
from asking for a terabyte. Here every loop turn, macro call, function call and output is charged to
a budget of work and time, and the few operations that make much out of little (repetition,
padding, powers, `replace`, `join`) are checked before they run. Whole templates are rewritten for
this before they are compiled, so nothing in a template can avoid it (case D10).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_UNSAFE_FILTERS = (
    *("center", "filesizeformat", "pprint", "random", "urlize", "wordwrap", "xmlattr"),
    *("batch", "slice"),
)
"""Filters that pad, repeat or draw lots; no chat template needs them."""
_PADDING_METHODS = frozenset(
    {"center", "expandtabs", "ljust", "rjust", "zfill", "translate", "to_bytes"}
)
_LONG_PERCENT = re.compile(r"%[^a-zA-Z%]*?(\d{4}|\*)")
_LONG_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\d{4}|\{)")
_MAX_INT_BITS = 4096
_MAX_INDENT = 64


class Budget:
    """What one rendering may cost: `work` in characters and steps, `seconds` of wall clock."""

    def __init__(self, work: int, seconds: float) -> None:
        self._left = work
        self._work = work
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def charge(self, cost: int) -> None:
        """Raises SecurityError once the budget is spent."""
        self._left -= cost
        if self._left < 0:
            raise SecurityError(
                f"the template does too much work (over {self._work} characters and steps)"
            )
        if time.monotonic() > self._deadline:
            raise SecurityError(f"the template takes too long (over {self._seconds:g} s)")


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles templates and runs each rendering under a Budget of its own. Safe to use from
    several threads."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # the optimizer would run constant expressions outside of any budget
            extensions=[_Generation, loopcontrols],
            finalize=self._output,
        )
        self._running = threading.local()
        for name in _UNSAFE_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters.update(indent=_indent, format=_format)
        self.filters.update(tojson=self._tojson, string=self._string)
        self.filters.update(replace=self._replace, join=self._join)
        self.globals.update(raise_exception=_raise, strftime_now=_Strftime(now))
        self.globals.update(namespace=_Namespace)

    def compile_bounded(self, tree: nodes.Template) -> jinja2.Template:
        """A template from its syntax tree, which is rewritten in place."""
        _Metering().visit(tree)
        code = self.compile(tree)
        return jinja2.Template.from_code(self, code, self.make_globals(None))

    def render(self, template: jinja2.Template, variables: dict[str, Any], budget: Budget) -> str:
        """Raises what the template raises; SecurityError beyond the budget."""
        self._running.budget = budget
        try:
            return "".join(template.generate(variables))
        finally:
            self._running.budget = None

    def charge(self, cost: int) -> str:
        """Called by the rewritten template; has no output."""
        budget = getattr(self._running, "budget", None)
        if budget is not None:
            budget.charge(cost)
        return ""

    def measured(self, value: Any) -> Any:
        """Charges the length of a value's text before it is made: a small structure that refers to
        its parts many times can be long when written out."""
        todo = [value]
        while todo:
            item = todo.pop()
            if isinstance(item, str):
                self.charge(len(item))
            elif isinstance(item, dict):
                self.charge(len(item))
                todo += item.keys()
                todo += item.values()
            elif isinstance(item, list | tuple | set):
                self.charge(len(item))
                todo += item
        return value

    def sized(self, value: Any) -> Any:
        """Charges the size of a value that was just made."""
        if isinstance(value, str | bytes | list | tuple | dict | set):
            self.charge(len(value))
        return value

    def call(
        __self,  # a template may pass any keyword, even `self`
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        owner = getattr(__obj, "__self__", None)
        if owner is __self:  # a charge of ours, which needs no checks
            return __obj(*args)
        if isinstance(owner, str | bytes | int):
            __self._check_method(owner, __obj.__name__, args)
        return __self.sized(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            self._check_repetition(left, right)
            self._check_repetition(right, left)
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            factor = abs(right) if operator == "**" else 1
            if left.bit_length() * factor + right.bit_length() > _MAX_INT_BITS:
                raise SecurityError("the template computes with numbers that are too long")
        if operator == "%" and isinstance(left, str):
            _check_width(_LONG_PERCENT, left)
        return self.sized(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr in _PADDING_METHODS and isinstance(obj, str | bytes | int):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_width(_LONG_BRACES, value.__self__)
        return wrapped

    def _check_method(self, owner: Any, name: str, args: tuple[Any, ...]) -> None:
        if name == "replace" and len(args) >= 2 and isinstance(owner, str):
            self._charge_replace(owner, args[0], args[1])
        elif name == "join" and args and isinstance(args[0], list | tuple):
            self.charge(len(owner) * len(args[0]))

    def _check_repetition(self, count: Any, thing: Any) -> None:
        if isinstance(count, int) and isinstance(thing, str | bytes | list | tuple):
            self.charge(len(thing) * max(count, 0))

    def _charge_replace(self, text: str, old: Any, new: Any) -> None:
        if isinstance(old, str) and isinstance(new, str):
            self.charge(text.count(old) * len(new) + len(text))

    def _replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        """Jinja's filter, for plain text."""
        text = self._string(text)
        self._charge_replace(text, old, new)
        result: str = text.replace(old, new, -1 if count is None else count)
        return result

    def _join(self, items: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        """Jinja's filter, for plain text."""
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        texts = []
        for item in items:
            texts.append(self._string(item))
            self.charge(len(d) + 1)
        return d.join(texts)

    def _string(self, value: Any) -> str:
        return str(self.measured(value))

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As transformers has it: no HTML escapes, text as it is."""
        if isinstance(indent, str) or (indent or 0) > _MAX_INDENT:
            raise SecurityError(f"tojson: indent must be a number up to {_MAX_INDENT}")
        return json.dumps(
            self.measured(value),
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def _output(self, value: Any) -> Any:
        """Every `{{ expression }}` comes through here."""
        return self.measured(value)


class _Metering(NodeTransformer):
    """Puts a charge at the head of every loop body and macro, of its literal text and one step,
    and around what is concatenated or filtered."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._meter(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._meter(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._meter(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_environment_call("measured", part, node.lineno) for part in node.nodes]
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        return _environment_call("sized", node, node.lineno)

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.Node:
        node.body = [self.visit(child) for child in node.body]  # its filter must stay a Filter
        return node

    def _meter(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        literal = sum(
            len(data.data) for child in node.body for data in child.find_all(nodes.TemplateData)
        )
        charge = _environment_call("charge", nodes.Const(literal + 1), node.lineno)
        node.body.insert(0, nodes.ExprStmt(charge).set_lineno(node.lineno))
        return node


def _environment_call(method: str, argument: nodes.Expr, line: int) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(method), [argument], [], None, None)
    return cast(nodes.Call, call.set_lineno(line))


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is only let through."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Strftime:
    """`strftime_now(format)`: the date that many templates write into the system prompt."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    def __call__(self, format: str) -> str:
        if len(format) > 100 or re.search(r"%[^a-zA-Z%]*\d{3}", format):
            raise SecurityError("strftime_now has too long a format")
        return self._now().strftime(format)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's filter with a bounded width."""
    if (len(width) if isinstance(width, str) else width) > _MAX_INDENT:
        raise SecurityError(f"indent: width must be at most {_MAX_INDENT}")
    return jinja2.filters.do_indent(str(text), width, first, blank)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    """Jinja's filter with bounded widths."""
    _check_width(_LONG_PERCENT, str(value))
    return str(value) % (kwargs or args)


def _check_width(pattern: re.Pattern[str], format: str) -> None:
    if pattern.search(format):
        raise SecurityError("the template pads text to a width of a thousand or more")


class _Namespace(Namespace):
    """Jinja's, with a short text: its own writes out everything in it."""

    def __repr__(self) -> str:
        return "<Namespace>"
