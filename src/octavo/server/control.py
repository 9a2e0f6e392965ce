"""Routes for those who run the server: drain, pause, resume.

Owns: those routes. `POST /drain?timeout=SECONDS` ends the server as SIGTERM does, with a deadline
of its own; a further one moves the deadline. `POST /pause` refuses new requests with 503 and a
Retry-After until `POST /resume`; those that were taken go on, waiting ones too. Requests are
refused, not kept: a balancer can send them elsewhere at once, and nobody waits without knowing for
how long.
Does not know: signals, or how draining goes on (lifecycle).

They need an admin's key where keys are set (auth denies by default). A web page must not reach them
on a machine without keys, so requests that a browser made for another site are refused.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.body import json_response
from octavo.server.errors import ApiError
from octavo.server.probes import serving_of
from octavo.server.serving import Serving

MAX_TIMEOUT = 86400


async def drain(request: Request) -> Response:
    serving = _serving(request)
    timeout = _timeout(request.query_params.get("timeout"))
    if serving.begin_drain is None:
        raise ApiError(503, "The server is not running yet.", code="loading", retry_after=1.0)
    seconds = serving.begin_drain(timeout)
    body = {"status": serving.state()[0], "timeout": seconds, "running": serving.unfinished}
    return json_response(body, 202)


async def pause(request: Request) -> Response:
    serving = _serving(request)
    _refuse_draining(serving)
    serving.paused = True
    return json_response({"status": serving.state()[0], "running": serving.unfinished})


async def resume(request: Request) -> Response:
    serving = _serving(request)
    _refuse_draining(serving)
    serving.paused = False
    return json_response({"status": serving.state()[0], "running": serving.unfinished})


def _serving(request: Request) -> Serving:
    origin = request.headers.get("origin")
    if origin is not None and origin not in request.app.state.allowed_origins:
        raise ApiError(
            403,
            f"Web pages of {origin!r:.80} may not control this server (--allowed-origins).",
            code="origin_not_allowed",
        )
    return serving_of(request)


def _refuse_draining(serving: Serving) -> None:
    if serving.draining:
        raise ApiError(409, "The server is shutting down; that cannot be undone.", code="draining")


def _timeout(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_TIMEOUT:
        raise ApiError(
            400,
            f"timeout is {text!r:.40}; it must be a number of seconds from 0 to {MAX_TIMEOUT}",
            "timeout",
            "invalid_value",
        )
    return seconds
