"""/generate: the route of vLLM's first API server, for clients that still use it.

Owns: that route. Body: {"prompt": "...", sampling parameters, "stream": bool}; answer: {"text":
[prompt + completion, ...]}. A stream is one such object a line (newline-delimited JSON), each with
the whole text so far of every choice; after a failure the last line is {"error": ...}.
Does not know: how pieces come about (generation).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.core.params import ParamError
from octavo.server.body import encode, json_response, read_body, warn_unknown
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, best
from octavo.server.probes import serving_of
from octavo.server.prompts import prompt_ids
from octavo.server.record import record_of
from octavo.server.sampling import priority_of, sampling_params, timeout_of
from octavo.server.service import service_class_of
from octavo.server.sse import EventStream, until_disconnect
from octavo.server.types import GenerateRequest


class GenerateResponse(msgspec.Struct):
    text: list[str]


@dataclass(slots=True)
class Answer:
    text: str
    cumulative_logprob: float = 0.0


async def generate(request: Request) -> Response:
    serving = serving_of(request)
    serving.check_accepting()
    body, unknown = await read_body(request, GenerateRequest)
    timeout = timeout_of(body, request.headers)
    params = sampling_params(body, serving.defaults, serving.vocab_size, serving.caps)
    if body.stream and params.choices > params.n:
        raise ParamError("best_of", "best_of greater than n cannot be streamed")
    prompts = await prompt_ids(
        body.prompt, serving.tokenizer, serving.vocab_size, serving.max_model_len
    )
    record = record_of(request.scope)
    service_class = service_class_of(request.scope)
    request_id = f"gen-{uuid.uuid4().hex}"
    generation = Generation(
        serving, record, request_id, prompts, params, priority_of(body), timeout, service_class
    )
    answers = [Answer(body.prompt) for _ in range(params.choices)]
    if body.stream:
        return LineStream(_lines(generation, answers))
    await until_disconnect(request.receive, _read(generation, answers))
    response = json_response(GenerateResponse([one.text for one in best(answers, params.n)]))
    warn_unknown(response, unknown, GenerateRequest)
    return response


async def _read(generation: Generation, answers: list[Answer]) -> None:
    async with aclosing(_fill(generation, answers)) as news:
        async for _ in news:
            pass


async def _lines(generation: Generation, answers: list[Answer]) -> AsyncGenerator[bytes, None]:
    async with aclosing(_fill(generation, answers)) as news:
        async for _ in news:
            yield encode(GenerateResponse([one.text for one in answers])) + b"\n"


async def _fill(generation: Generation, answers: list[Answer]) -> AsyncGenerator[None, None]:
    """Fills `answers`, and yields after each piece."""
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            answer = answers[piece.choice]
            answer.text += piece.delta.text
            answer.cumulative_logprob = piece.cumulative_logprob
            yield


class LineStream(EventStream):
    """Newline-delimited JSON instead of server-sent events; there is no room for heartbeats."""

    media_type = "application/x-ndjson"
    closing = b""

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines, heartbeat=0.0)

    def failure(self, error: ApiError) -> bytes:
        return error.body() + b"\n"
