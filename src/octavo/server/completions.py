"""/v1/completions: OpenAI's older route, the one that evaluation tools use.

Owns: that route: echo, best_of, prompt lists, its chunks.
Does not know: how pieces come about (generation).

Choices are numbered prompt-major: prompt 0's n choices first. With echo and logprobs the prompt's
logprobs come too, the first token's as null (what lm-eval relies on).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.core.params import ParamError, SamplingParams
from octavo.server.body import encode, encode_each
from octavo.server.checks import check_completion
from octavo.server.generation import Generation, Piece, best
from octavo.server.logprobs import (
    CompletionLogprobs,
    PromptPosition,
    completion_logprobs,
    echoed_logprobs,
    prompt_logprobs,
)
from octavo.server.prompts import prompt_ids, split_prompts
from octavo.server.record import record_of
from octavo.server.respond import respond
from octavo.server.sampling import priority_of, sampling_params, timeout_of
from octavo.server.service import service_class_of
from octavo.server.serving import Serving
from octavo.server.sse import event
from octavo.server.types import Completion, CompletionChoice, CompletionRequest

T = TypeVar("T")


MAX_PROMPT_LOGPROBS = 1 << 21
"""Entries in one answer, the alternatives and every choice's copy included: some 60 MB of JSON."""
_INLINE_ENTRIES = 4096
"""Up to so many are written on the loop: faster than handing them to a thread."""


@dataclass(slots=True)
class Answer:
    """What one choice has said so far."""

    text: list[str] = field(default_factory=list)
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[PromptPosition] | None = None
    cumulative_logprob: float = 0.0


@dataclass(slots=True)
class Job:
    """One request to this route, on its way to responses or chunks."""

    serving: Serving
    body: CompletionRequest
    params: SamplingParams
    prompts: list[list[int]]
    generation: Generation
    echoes: list[str]
    """What each prompt's choices begin with: its text, with echo."""
    id: str
    echoed: dict[int, CompletionLogprobs] = field(default_factory=dict)
    positions: dict[int, list[PromptPosition]] = field(default_factory=dict)
    """The logprobs of each prompt in the two forms, made once for all its choices."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> str:
        return self.body.model or self.serving.name


async def create(request: Request) -> Response:
    """Raises ApiError, ParamError and Refused."""
    return await respond(request, CompletionRequest, _job, _chunks, _whole)


async def _job(serving: Serving, body: CompletionRequest, request: Request) -> Job:
    serving.check_model(body.model)
    check_completion(body)
    timeout = timeout_of(body, request.headers)
    params = sampling_params(
        body, serving.defaults, serving.vocab_size, serving.caps, **_logprob_fields(body)
    )
    if body.stream and params.choices > params.n:
        raise ParamError("best_of", "best_of greater than n cannot be streamed")
    prompts = await prompt_ids(
        body.prompt,
        serving.tokenizer,
        serving.vocab_size,
        serving.max_model_len,
        body.add_special_tokens is not False,
    )
    _check_volume(params, prompts)
    echoes = _echoes(serving, body, prompts)
    request_id = f"cmpl-{uuid.uuid4().hex}"
    service_class = service_class_of(request.scope, body.service_tier)
    record = record_of(request.scope)
    generation = Generation(
        serving, record, request_id, prompts, params, priority_of(body), timeout, service_class
    )
    return Job(serving, body, params, prompts, generation, echoes, request_id)


def _logprob_fields(body: CompletionRequest) -> dict[str, int]:
    """Echo with logprobs means the prompt's logprobs too."""
    if body.logprobs is None:
        return {}
    fields = {"logprobs": body.logprobs}
    if body.echo:
        fields["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    return fields


def _check_volume(params: SamplingParams, prompts: list[list[int]]) -> None:
    """Each choice repeats its prompt's logprobs: a few bytes could ask for gigabytes (D08)."""
    if params.prompt_logprobs is None:
        return
    entries = sum(map(len, prompts)) * params.n * (params.prompt_logprobs + 1)
    if entries > MAX_PROMPT_LOGPROBS:
        raise ParamError(
            "logprobs",
            f"{entries} logprobs of prompts (tokens x n x alternatives) are asked for; the limit "
            f"is {MAX_PROMPT_LOGPROBS}",
        )


def _echoes(serving: Serving, body: CompletionRequest, prompts: list[list[int]]) -> list[str]:
    if not body.echo:
        return [""] * len(prompts)
    given = split_prompts(body.prompt)
    skip = body.skip_special_tokens is not False
    return [
        text if isinstance(text, str) else serving.tokenizer.decode(ids, skip_special_tokens=skip)
        for text, ids in zip(given, prompts, strict=True)
    ]


async def _whole(job: Job) -> Completion:
    answers: dict[tuple[int, int], Answer] = {}
    async with aclosing(job.generation.pieces()) as pieces:
        async for piece in pieces:
            key = (piece.prompt, piece.choice)
            answer = answers.get(key)
            if answer is None:
                answer = answers[key] = Answer([job.echoes[piece.prompt]])
            await _extend(job, answer, piece)
    choices: list[CompletionChoice] = []
    for prompt in range(len(job.prompts)):
        of_prompt = [answers[prompt, choice] for choice in range(job.params.choices)]
        for answer in best(of_prompt, job.params.n):
            choices.append(
                CompletionChoice(
                    len(choices),
                    "".join(answer.text),
                    answer.logprobs,
                    answer.finish_reason,
                    answer.stop_reason,
                    answer.prompt_logprobs if answer.prompt_logprobs is not None else UNSET,
                )
            )
    encoded = await encode_each(choices)
    return Completion(job.id, job.created, job.model, encoded, job.generation.usage())


async def _extend(job: Job, answer: Answer, piece: Piece) -> None:
    answer.text.append(piece.delta.text)
    answer.cumulative_logprob = piece.cumulative_logprob
    if piece.delta.finish_reason is not None:
        answer.finish_reason = piece.delta.finish_reason.value
        answer.stop_reason = piece.delta.stop_reason
    if job.body.prompt_logprobs is not None and answer.prompt_logprobs is None:
        answer.prompt_logprobs = await _positions(job, piece, job.body.prompt_logprobs)
    entries = await _logprobs(job, piece, answer.logprobs is None)
    if entries is not None:
        if answer.logprobs is None:
            answer.logprobs = entries
        else:
            answer.logprobs.extend(entries)


async def _logprobs(job: Job, piece: Piece, first: bool) -> CompletionLogprobs | None:
    """`first`: nothing was written for this choice yet, so an echoed prompt goes before."""
    top = job.body.logprobs
    if top is None:
        return None
    offset = len(job.echoes[piece.prompt])
    entries = completion_logprobs(piece.delta.logprobs or (), top, offset)
    if not (first and job.body.echo):
        return entries
    result = CompletionLogprobs([], [], [], [])
    result.extend(await _echoed(job, piece, top))
    result.extend(entries)
    return result


async def _echoed(job: Job, piece: Piece, top: int) -> CompletionLogprobs:
    ids = job.prompts[piece.prompt]
    known = job.echoed.get(piece.prompt)
    if known is None:
        make = partial(echoed_logprobs, job.serving.tokenizer, ids, piece.prompt_logprobs, top)
        known = job.echoed[piece.prompt] = await _made(make, len(ids) * (top + 1))
    return known


async def _positions(job: Job, piece: Piece, top: int) -> list[PromptPosition]:
    known = job.positions.get(piece.prompt)
    if known is None:
        make = partial(prompt_logprobs, job.serving.tokenizer, piece.prompt_logprobs, top)
        size = len(piece.prompt_logprobs) * (top + 1)
        known = job.positions[piece.prompt] = await _made(make, size)
    return known


async def _made(make: Callable[[], T], entries: int) -> T:
    return make() if entries <= _INLINE_ENTRIES else await asyncio.to_thread(make)


async def _chunks(job: Job) -> AsyncGenerator[bytes, None]:
    seen: set[int] = set()
    with_usage = job.body.stream_options is not None and job.body.stream_options.include_usage
    async with aclosing(job.generation.pieces()) as pieces:
        async for piece in pieces:
            index = piece.prompt * job.params.n + piece.choice
            first = index not in seen
            seen.add(index)
            delta = piece.delta
            text = job.echoes[piece.prompt] + delta.text if first else delta.text
            logprobs = await _logprobs(job, piece, first)
            if not (text or delta.finish_reason or (logprobs and logprobs.tokens)):
                continue
            finish = None if delta.finish_reason is None else delta.finish_reason.value
            choice = CompletionChoice(index, text, logprobs, finish, delta.stop_reason)
            yield event(encode(Completion(job.id, job.created, job.model, [choice])))
    if with_usage:
        usage = job.generation.usage()
        yield event(encode(Completion(job.id, job.created, job.model, [], usage)))
