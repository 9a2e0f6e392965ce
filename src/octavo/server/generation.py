"""The generation behind one HTTP request: its submissions, merged into one series of pieces.

Owns: submitting, following all prompts at once, stop strings' effect on the engine, usage, what
metrics and the request's record learn, and freeing everything when the request ends in any way.
Does not know: JSON, SSE, or the schemas of responses.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from octavo.core.params import ParamError, SamplingParams
from octavo.core.plan import TokenLogprob
from octavo.core.request import (
    DEADLINE_EXCEEDED,
    FinishReason,
    Output,
    Refused,
    ServiceClass,
    Submission,
)
from octavo.engine.choices import best_choices
from octavo.server.errors import ApiError, from_output, from_refused
from octavo.server.metrics import Metrics
from octavo.server.record import Record
from octavo.server.sampling import fit_context
from octavo.server.serving import Serving, Stream
from octavo.server.types import PromptTokensDetails, Usage
from octavo.text.output import ChoiceText, TextDelta

ScoredT = TypeVar("ScoredT", bound="Scored")

MAX_SEQUENCES = 2048
"""Sequences (prompts times choices) in one HTTP request."""


@dataclass(slots=True)
class Piece:
    """News of one choice: `prompt` and `choice` count from 0, `delta` is what it adds. After the
    piece with a finish reason nothing follows for the choice. `prompt_logprobs` are those known of
    its prompt, entry i telling of token i + 1; empty unless asked for."""

    prompt: int
    choice: int
    delta: TextDelta
    prompt_logprobs: Sequence[TokenLogprob] = ()
    cumulative_logprob: float = 0.0


class Scored(Protocol):
    cumulative_logprob: float


def best(answers: Sequence[ScoredT], n: int) -> Sequence[ScoredT]:
    """The `n` most likely ones by cumulative logprob, where more were generated than asked for."""
    return [answers[i] for i in best_choices([one.cumulative_logprob for one in answers], n)]


def _likelihood(output: Output, kept: int) -> float:
    """The cumulative logprob without what was generated beyond a stop string: how much that is
    depends on how many tokens came at once, and the choice of the best must not."""
    beyond = output.logprobs[kept:] if output.logprobs is not None else ()
    return output.cumulative_logprob - sum(entry.logprob for entry in beyond)


def _check_room(serving: Serving, prompts: Sequence[list[int]]) -> None:
    """Raise ParamError for prompts that even an engine at rest could not take all at once: they
    would be refused for ever."""
    if len(prompts) > serving.max_requests:
        raise ParamError(
            "prompt",
            f"the request has {len(prompts)} prompts; the engine can run and queue "
            f"{serving.max_requests} (--max-num-seqs and --max-waiting-requests together). Send "
            "them in several requests.",
        )
    tokens = sum(map(len, prompts))
    if len(prompts) > 1 and tokens > serving.max_waiting_tokens:
        raise ParamError(
            "prompt",
            f"the {len(prompts)} prompts have {tokens} tokens; {serving.max_waiting_tokens} "
            "may wait (--max-waiting-tokens). Send them in several requests.",
        )


class ChoiceRun:
    """One choice while it runs: its text and its times (time.monotonic)."""

    def __init__(self, text: ChoiceText) -> None:
        self.text = text
        self.first = 0.0
        self.latest = 0.0
        self.preemptions = 0

    def note(self, output: Output, now: float, metrics: Metrics) -> None:
        """An output that brings tokens."""
        if self.first:
            metrics.itl.observe((now - self.latest) / len(output.tokens))
        else:
            self.first = now
        self.latest = now
        self.preemptions = max(self.preemptions, output.preemptions)

    def ended(self, reason: str, record: Record, metrics: Metrics) -> None:
        record.finish.append(reason)
        metrics.finished(reason)
        tokens = self.text.token_count
        metrics.generation_tokens.observe(tokens)
        metrics.preemptions.observe(self.preemptions)
        if tokens > 1:
            metrics.tpot.observe((self.latest - self.first) / (tokens - 1))


@dataclass(slots=True)
class PromptRun:
    """One submission: a prompt and its choices. What comes once for a prompt, with whichever choice
    is first, is kept here."""

    index: int
    submission: Submission
    choices: list[ChoiceRun]
    stream: Stream | None = None
    started: bool = False
    """Its first token has come."""
    queue_time: float | None = None
    cached_tokens: int = 0
    prompt_logprobs: Sequence[TokenLogprob] = ()


class Generation:
    """Checked on construction (ParamError, ApiError); `pieces` submits and follows; `usage` is
    right once they are all read. `params` has no max_tokens where the request named none."""

    def __init__(
        self,
        serving: Serving,
        record: Record,
        request_id: str,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        priority: int = 0,
        timeout: float | None = None,
        service_class: ServiceClass = ServiceClass.REALTIME,
    ) -> None:
        _check_room(serving, prompts)
        if len(prompts) * params.choices > MAX_SEQUENCES:
            raise ParamError(
                "n",
                f"{len(prompts)} prompts with {params.choices} choices each are "
                f"{len(prompts) * params.choices} sequences; the limit is {MAX_SEQUENCES}",
            )
        self._serving = serving
        self._record = record
        self._runs: list[PromptRun] = []
        for index, prompt in enumerate(prompts):
            fitted = fit_context(params, len(prompt), serving.max_model_len)
            if fitted.choices > fitted.n and fitted.stop and fitted.logprobs is None:
                fitted = replace(fitted, logprobs=0)  # see `_likelihood`
            seed = secrets.randbits(63) if params.seed is None else params.seed
            one = Submission(
                f"{request_id}-{index}", prompt, fitted, seed, record.arrival, priority,
                service_class, tenant=record.key_name or "", timeout=timeout,
            )  # fmt: skip
            texts = [ChoiceText(serving.tokenizer, fitted, prompt) for _ in range(fitted.choices)]
            self._runs.append(PromptRun(index, one, [ChoiceRun(text) for text in texts]))
        record.prompt_tokens = sum(len(prompt) for prompt in prompts)

    def usage(self) -> Usage:
        """Each prompt counts once, whatever the number of its choices."""
        prompt = self._record.prompt_tokens or 0
        output = sum(choice.text.token_count for run in self._runs for choice in run.choices)
        cached = sum(run.cached_tokens for run in self._runs)
        return Usage(prompt, output, prompt + output, PromptTokensDetails(cached))

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """All news, each choice in order. Raises ApiError for the first thing that fails, and then
        the whole request is over; leaving early frees everything."""
        metrics = self._serving.metrics
        failed = False
        try:
            for run in self._runs:
                metrics.prompt_tokens.observe(len(run.submission.prompt))
                metrics.choices.observe(run.submission.params.n)
                run.stream = self._serving.engine.submit(run.submission)
            source = self._follow(self._runs[0]) if len(self._runs) == 1 else self._merge()
            async with aclosing(source):
                async for piece in source:
                    yield piece
        except Refused as refused:
            failed = True
            raise from_refused(refused) from None
        except ApiError:
            failed = True
            raise
        finally:
            await self._release("error" if failed else "abort")

    async def _follow(self, run: PromptRun) -> AsyncGenerator[Piece, None]:
        """The pieces of one prompt."""
        assert run.stream is not None
        async for output in run.stream:
            if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                if output.error_code == DEADLINE_EXCEEDED:
                    self._serving.metrics.expired(run.started)
                raise from_output(output)
            piece = self._take(run, output)
            if piece.delta.abort:
                await run.stream.abort(output.choice)
            yield piece
        if any(choice.text.finish_reason is None for choice in run.choices):
            raise ApiError(503, "The generation was cut off.", code="engine_closed")
        self._serving.metrics.e2e.observe(time.monotonic() - self._record.arrival)

    async def _merge(self) -> AsyncGenerator[Piece, None]:
        """Pieces of all prompts as they come. The queue is short: what a slow reader leaves lies
        merged in the engine's client."""
        queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(len(self._runs))

        async def pump(run: PromptRun) -> None:
            try:
                async for piece in self._follow(run):
                    await queue.put(piece)
                await queue.put(None)
            except Exception as error:
                await queue.put(error)  # raised again where the pieces are read

        tasks = [asyncio.create_task(pump(run)) for run in self._runs]
        try:
            left = len(tasks)
            while left:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, run: PromptRun, output: Output) -> Piece:
        choice = run.choices[output.choice]
        metrics = self._serving.metrics
        if output.tokens:
            now = time.monotonic()
            if not run.started:
                run.started = True
                self._first_token(now)
            choice.note(output, now, metrics)
        if output.queue_time is not None and run.queue_time is None:
            run.queue_time = output.queue_time
            metrics.queued(run.submission.service_class, output.queue_time)
        if output.cached_tokens is not None:
            run.cached_tokens = max(run.cached_tokens, output.cached_tokens)
        if output.prompt_logprobs is not None:
            run.prompt_logprobs = output.prompt_logprobs
        delta = choice.text.push(output)
        if delta.finish_reason is not None:
            params = run.submission.params
            if delta.stop_reason not in (*params.stop_token_ids, *params.stop):
                delta.stop_reason = None  # EOS, which is no stop that anybody asked for
            choice.ended(delta.finish_reason.value, self._record, metrics)
        likelihood = _likelihood(output, len(delta.tokens))
        return Piece(run.index, output.choice, delta, run.prompt_logprobs, likelihood)

    def _first_token(self, now: float) -> None:
        """Of one prompt; the record keeps the first of all."""
        ttft = now - self._record.arrival
        self._serving.metrics.ttft.observe(ttft)
        if self._record.ttft is None:
            self._record.ttft = ttft

    async def _release(self, reason: str) -> None:
        """Whatever happened: nothing stays behind in the engine, and every choice is counted."""
        self._record.output_tokens = self.usage().completion_tokens
        for run in self._runs:
            if run.stream is not None:
                await run.stream.aclose()
            for choice in run.choices:
                if choice.text.finish_reason is None:
                    choice.ended(reason, self._record, self._serving.metrics)
