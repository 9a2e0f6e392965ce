"""/v1/chat/completions: the route that nearly every client uses.

Owns: that route, and the grammar of its chunks.
Does not know: how messages become a prompt (messages), or how pieces come about (generation).

Grammar of a stream (case A07): a choice's first chunk has the role and an empty content; then
chunks with content; exactly one chunk with a finish_reason, which is the choice's last. With
`include_usage` one more chunk without choices follows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.core.params import ParamError, SamplingParams
from octavo.server.body import encode, encode_each
from octavo.server.checks import check_chat
from octavo.server.generation import Generation, Piece, best
from octavo.server.logprobs import ChatLogprobs, ChatTokenLogprob, chat_logprobs
from octavo.server.messages import chat_prompt
from octavo.server.record import record_of
from octavo.server.respond import respond
from octavo.server.sampling import priority_of, sampling_params, timeout_of
from octavo.server.service import service_class_of
from octavo.server.serving import Serving
from octavo.server.sse import event
from octavo.server.types import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatRequest,
    Delta,
)


@dataclass(slots=True)
class Job:
    """One request to this route, on its way to a response or chunks."""

    model: str
    body: ChatRequest
    params: SamplingParams
    generation: Generation
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        return chat_logprobs(piece.delta.logprobs or (), self.body.top_logprobs or 0)


@dataclass(slots=True)
class Answer:
    """What one choice has said so far."""

    text: list[str] = field(default_factory=list)
    logprobs: list[ChatTokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float = 0.0


async def create(request: Request) -> Response:
    """Raises ApiError, ParamError and Refused."""
    return await respond(request, ChatRequest, _job, _chunks, _whole)


async def _job(serving: Serving, body: ChatRequest, request: Request) -> Job:
    serving.check_model(body.model)
    check_chat(body)
    timeout = timeout_of(body, request.headers)
    params = _params(serving, body)
    if body.stream and params.choices > params.n:
        raise ParamError("best_of", "best_of greater than n cannot be streamed")
    ids = await chat_prompt(serving, body.messages, body)
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    record = record_of(request.scope)
    service_class = service_class_of(request.scope, body.service_tier)
    generation = Generation(
        serving, record, request_id, [ids], params, priority_of(body), timeout, service_class
    )
    return Job(body.model or serving.name, body, params, generation, request_id)


def _params(serving: Serving, body: ChatRequest) -> SamplingParams:
    """Errors name the fields as this route spells them."""
    overrides: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    if body.max_completion_tokens is not None:
        overrides["max_tokens"] = body.max_completion_tokens
        spelt["max_tokens"] = "max_completion_tokens"
    if body.logprobs:
        overrides["logprobs"] = body.top_logprobs or 0
        spelt["logprobs"] = "top_logprobs"
    try:
        return sampling_params(
            body, serving.defaults, serving.vocab_size, serving.caps, **overrides
        )
    except ParamError as error:
        if error.param not in spelt:
            raise
        name = spelt[error.param]
        raise ParamError(name, str(error).replace(error.param, name), error.code) from None


async def _whole(job: Job) -> ChatCompletion:
    answers = [Answer() for _ in range(job.params.choices)]
    async with aclosing(job.generation.pieces()) as pieces:
        async for piece in pieces:
            answer = answers[piece.choice]
            answer.text.append(piece.delta.text)
            answer.cumulative_logprob = piece.cumulative_logprob
            if logprobs := job.logprobs(piece):
                answer.logprobs += logprobs.content
            if piece.delta.finish_reason is not None:
                answer.finish_reason = piece.delta.finish_reason.value
                answer.stop_reason = piece.delta.stop_reason
    choices = [
        ChatChoice(
            index,
            AssistantMessage("".join(answer.text)),
            ChatLogprobs(answer.logprobs) if job.body.logprobs else None,
            answer.finish_reason,
            answer.stop_reason,
        )
        for index, answer in enumerate(best(answers, job.params.n))
    ]
    encoded = await encode_each(choices)
    return ChatCompletion(job.id, job.created, job.model, encoded, job.generation.usage())


async def _chunks(job: Job) -> AsyncGenerator[bytes, None]:
    def chunk(choice: ChatChunkChoice) -> bytes:
        return event(encode(ChatChunk(job.id, job.created, job.model, [choice])))

    seen: set[int] = set()
    async with aclosing(job.generation.pieces()) as pieces:
        async for piece in pieces:
            index, delta = piece.choice, piece.delta
            if index not in seen:
                seen.add(index)
                yield chunk(ChatChunkChoice(index, Delta("assistant", "")))
            logprobs = job.logprobs(piece)
            if delta.text or (logprobs and logprobs.content):
                yield chunk(ChatChunkChoice(index, Delta(None, delta.text), logprobs))
            if delta.finish_reason is not None:
                reason = delta.finish_reason.value
                yield chunk(ChatChunkChoice(index, Delta(), None, reason, delta.stop_reason))
    options = job.body.stream_options
    if options is not None and options.include_usage:
        usage = job.generation.usage()
        yield event(encode(ChatChunk(job.id, job.created, job.model, [], usage)))
