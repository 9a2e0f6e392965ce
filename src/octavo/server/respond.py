"""From a request to its response, the way that every generating route of OpenAI's goes.

Owns: the order of things: accepting, decoding, checking, then one body or a stream of events.
Does not know: any route's fields or schemas.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.body import (
    WARNING_HEADER,
    json_response,
    read_body,
    unknown_warning,
    warn_unknown,
)
from octavo.server.probes import serving_of
from octavo.server.serving import Serving
from octavo.server.sse import EventStream, until_disconnect
from octavo.server.types import OpenAIFields

BodyT = TypeVar("BodyT", bound=OpenAIFields)
JobT = TypeVar("JobT")


async def respond(
    request: Request,
    kind: type[BodyT],
    prepare: Callable[[Serving, BodyT, Request], Awaitable[JobT]],
    chunks: Callable[[JobT], AsyncGenerator[bytes, None]],
    whole: Callable[[JobT], Coroutine[Any, Any, Any]],
) -> Response:
    """`prepare` checks the body (of type `kind`) and makes the job; `chunks` streams it, `whole`
    answers it at once. Raises ApiError, ParamError and Refused; a stream's errors come before its
    headers if they are known by then."""
    serving = serving_of(request)
    serving.check_accepting()
    body, unknown = await read_body(request, kind)
    job = await prepare(serving, body, request)
    if body.stream:
        warning = unknown_warning(unknown, kind)
        headers = {WARNING_HEADER: warning} if warning else None
        return EventStream(chunks(job), serving.heartbeat, headers)
    response = json_response(await until_disconnect(request.receive, whole(job)))
    warn_unknown(response, unknown, kind)
    return response
