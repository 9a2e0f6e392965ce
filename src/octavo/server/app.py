"""The application: the table of routes and what surrounds them.

Owns: which path leads where, the order of the layers, errors' way into responses.
Does not know: what any route does.

Layers, from outside: record (request id, log line, last catch), CORS, keys, body limit, routes.
A route that is added here is guarded without any further code: `auth` denies by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from octavo.core.params import ParamError
from octavo.core.request import Refused
from octavo.server import batches, chat, completions, control, files, legacy, probes, tokens
from octavo.server.auth import AuthMiddleware, Key
from octavo.server.batching import Batching
from octavo.server.errors import ApiError, from_param, from_refused
from octavo.server.middleware import BodyLimitMiddleware, RecordMiddleware
from octavo.server.record import CLIENT_CLOSED, Record, record_of
from octavo.server.serving import Serving
from octavo.server.sse import ClientGone

if TYPE_CHECKING:
    from octavo.batchq.store import Store

UNMATCHED = "unmatched"


def routes() -> list[Route]:
    return [
        Route("/", probes.page, methods=["GET"]),
        Route("/health", probes.health, methods=["GET"]),
        Route("/ready", probes.ready, methods=["GET"]),
        Route("/version", probes.show_version, methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        Route("/stats", probes.stats, methods=["GET"]),
        Route("/v1/models", probes.models, methods=["GET"]),
        Route("/v1/models/{name:path}", probes.model, methods=["GET"]),
        Route("/v1/completions", completions.create, methods=["POST"]),
        Route("/v1/chat/completions", chat.create, methods=["POST"]),
        Route("/v1/files", files.upload, methods=["POST"]),
        Route("/v1/files", files.index, methods=["GET"]),
        Route("/v1/files/{file_id}", files.show, methods=["GET"]),
        Route("/v1/files/{file_id}", files.delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/content", files.content, methods=["GET"]),
        Route("/v1/batches", batches.create, methods=["POST"]),
        Route("/v1/batches", batches.index, methods=["GET"]),
        Route("/v1/batches/{batch_id}", batches.show, methods=["GET"]),
        Route("/v1/batches/{batch_id}/cancel", batches.cancel, methods=["POST"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/generate", legacy.generate, methods=["POST"]),
        Route("/drain", control.drain, methods=["POST"]),
        Route("/pause", control.pause, methods=["POST"]),
        Route("/resume", control.resume, methods=["POST"]),
    ]


def build_app(
    serving: Serving,
    keys: tuple[Key, ...] = (),
    allowed_origins: tuple[str, ...] = (),
    max_body_size: int = 32 * 1024**2,
    store: Store | None = None,
    batch_rows: int = 64,
) -> Starlette:
    """The ASGI application over `serving`. Whoever builds it starts and closes the engine, and
    `app.state.batching`, which is there with a `store` and has `batch_rows` rows in flight."""
    table = routes()
    templates = {route.endpoint: route.path for route in table}
    paths = frozenset(templates.values())

    def template(scope: Scope) -> str:
        """Which route served it. What was refused before the router is known by its path."""
        if "endpoint" in scope:
            return templates.get(scope["endpoint"], UNMATCHED)
        return scope["path"] if scope["path"] in paths else UNMATCHED

    def finished(record: Record) -> None:
        serving.metrics.http(record.method, record.route, record.status, record.total)

    middleware = [Middleware(RecordMiddleware, template=template, finished=finished)]
    if allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(allowed_origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "octavo-warning", "retry-after"],
            )
        )
    middleware.append(Middleware(AuthMiddleware, keys=keys))
    uploads = {} if store is None else {"/v1/files": _upload_limit(store)}
    middleware.append(Middleware(BodyLimitMiddleware, limit=max_body_size, by_path=uploads))
    app = Starlette(
        routes=table,
        middleware=middleware,
        exception_handlers={
            ApiError: _api_error,
            ParamError: _param_error,
            Refused: _refused,
            HTTPException: _http_error,
            ClientDisconnect: _client_gone,
            ClientGone: _client_gone,
        },
    )
    app.router.redirect_slashes = False
    app.state.serving = serving
    app.state.batching = None if store is None else Batching(store, app, batch_rows)
    if store is not None:
        serving.metrics.batches = app.state.batching.values
    app.state.allowed_origins = frozenset(allowed_origins)
    return app


def _upload_limit(store: Store) -> tuple[int, str]:
    return store.limits.max_file_bytes + files.FORM_OVERHEAD, "--batch-max-file-size"


def _answer(request: Request, error: ApiError) -> Response:
    record_of(request.scope).error = error.code or error.param
    return error.response()


def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


def _param_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ParamError)
    return _answer(request, from_param(error))


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _answer(request, from_refused(error))


def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or not this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _answer(request, probes.not_found(request.url.path))
    headers = dict(error.headers or {})
    message = f"{request.method} is not allowed here." if error.status_code == 405 else error.detail
    return _answer(request, ApiError(error.status_code, message, headers=headers))


def _client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads this answer; the status is for the log."""
    record_of(request.scope).error = "ClientGone"
    return Response(status_code=CLIENT_CLOSED)
