"""One request, streamed, and the facts of it: when tokens came, how many, or why it failed.

Owns: `Api` (how requests are written), `Outcome`, the reading of a stream's events.
Does not know: other requests, or percentiles.

Tokens are counted by the server's `usage` alone; text is never tokenised again. A chunk counts as
tokens' arrival if it has content; one with only a role, or with usage, does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.bench.load.http import HttpFault, Target, exchange
from octavo.bench.load.workload import Item

MOST_REASON = 200
"""Characters of a reason: reasons are counted, and must not differ by what they quote."""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def has_content(self) -> bool:
        if self.delta is not None:
            return bool(self.delta.content or self.delta.reasoning_content)
        return bool(self.text)


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODE = msgspec.json.Decoder(_Event).decode


@dataclass(frozen=True, slots=True)
class Api:
    """How one server is asked. `chat` uses the chat route, with the prompt as one user message."""

    target: Target
    model: str | None = None
    api_key: str | None = None
    chat: bool = False
    timeout: float = 600.0
    """Seconds that a whole request may take."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers

    def body(self, item: Item, salt: str = "") -> bytes:
        """Greedy, of exactly `max_tokens` tokens, streamed with usage."""
        prompt = salt + item.prompt
        asked = (
            {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        )
        fields: dict[str, Any] = {
            **asked,
            "max_tokens": item.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model is not None:
            fields["model"] = self.model
        return json.dumps(fields).encode()


@dataclass(slots=True)
class Outcome:
    """All times are seconds after the run's start. `arrivals`: when each chunk with content came;
    `last`: when the last token was there. `failure` says why the request does not count.

    `cancelled` requests (the run was interrupted) are neither successes nor failures.
    """

    due: float
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    last: float = 0.0
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    failure: str | None = None
    cancelled: bool = False

    @property
    def good(self) -> bool:
        return self.failure is None and not self.cancelled

    @property
    def ttft(self) -> float | None:
        return self.arrivals[0] - self.sent if self.arrivals else None

    @property
    def e2e(self) -> float:
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; undefined for a single token."""
        if self.output_tokens < 2 or not self.arrivals:
            return None
        return (self.last - self.arrivals[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> Iterator[float]:
        """Between one chunk with content and the next."""
        for one, other in zip(self.arrivals, self.arrivals[1:], strict=False):
            yield other - one


async def ask(api: Api, body: bytes, due: float, start: float) -> Outcome:
    """Send one request and follow its stream. Never raises for what a server does."""
    outcome = Outcome(due, sent=time.perf_counter() - start)
    stream = _Stream(outcome, start)
    try:
        async with asyncio.timeout(api.timeout):
            answer = await exchange(
                api.target, "POST", api.path, body, api.headers(), stream.receive
            )
        outcome.failure = (
            stream.verdict()
            if answer.status == 200
            else f"status {answer.status}: {_message(answer.error)}"
        )
    except TimeoutError:
        came = len(outcome.arrivals)
        outcome.failure = f"not done after {api.timeout:g} s ({'some' if came else 'no'} tokens)"
    except HttpFault as fault:
        # A stream that has said its last is done, however its connection ends.
        outcome.failure = stream.verdict() if stream.done else str(fault)
    except asyncio.CancelledError:
        outcome.cancelled = True
    if outcome.failure is not None:
        outcome.failure = " ".join(outcome.failure.split())[:MOST_REASON]
    outcome.ended = stream.ended or time.perf_counter() - start
    return outcome


class _Stream:
    """Reads server-sent events out of a body."""

    def __init__(self, outcome: Outcome, start: float) -> None:
        self.done = False
        self.ended = 0.0
        self._outcome = outcome
        self._start = start
        self._rest = b""
        self._usage: _Usage | None = None
        self._finished = False
        self._error: str | None = None

    def receive(self, now: float, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(now - self._start, line[5:].strip())

    def verdict(self) -> str | None:
        """Why a stream with status 200 is no success, if so."""
        if self._error is not None:
            return self._error
        if self._usage is None and not self._outcome.arrivals:
            return "an empty stream"
        if not self.done and not self._finished:
            return "the stream ended without a finish reason"
        if self._usage is None:
            return "no usage in the stream"
        self._outcome.prompt_tokens = self._usage.prompt_tokens
        self._outcome.output_tokens = self._usage.completion_tokens
        return "no tokens were generated" if self._usage.completion_tokens < 1 else None

    def _event(self, now: float, data: bytes) -> None:
        if data == b"[DONE]":
            self.done, self.ended = True, now
            return
        try:
            event = _DECODE(data)
        except msgspec.MsgspecError:
            self._error = self._error or "an event that is not JSON"
            return
        if event.error is not None:
            self._error = f"error event: {_message(data)}"
        if event.usage is not None:
            self._usage = event.usage
        for choice in event.choices:
            if choice.has_content():
                self._outcome.arrivals.append(now)
                self._outcome.last = now
            if choice.finish_reason is not None:
                # The last token may have no text of its own (half a character, a special token).
                self._finished, self._outcome.last = True, now


def _message(body: bytes) -> str:
    """An error's message in OpenAI's form; else the beginning of the body."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    return body[:MOST_REASON].decode("utf-8", "replace") or "(no body)"
