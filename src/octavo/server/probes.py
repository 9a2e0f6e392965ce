"""Routes that tell of the server: health, readiness, version, models, metrics, stats, the page.

Owns: those routes. They answer from what is at hand and never wait for the engine.
Does not know: generation.

`/health` is about liveness: 200 while the server runs or can recover by itself (loading,
restarting, draining), 503 when the engine is stuck or has failed for good. `/ready` is 200 only
while new requests are served.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.body import json_response
from octavo.server.errors import RETRY_AFTER, ApiError
from octavo.server.metrics import engine_values
from octavo.server.serving import Serving
from octavo.server.types import ModelCard, ModelList


def serving_of(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


async def health(request: Request) -> Response:
    serving = serving_of(request)
    report = serving.engine.health()
    state, reason = serving.state()
    body = {"status": state, "reason": reason, "restarts": report.restarts}
    return json_response(body, 200 if report.ok else 503)


async def ready(request: Request) -> Response:
    serving = serving_of(request)
    state, reason = serving.state()
    response = json_response({"status": state, "reason": reason}, 200 if serving.ready else 503)
    if not serving.ready:
        response.headers["retry-after"] = str(round(RETRY_AFTER))
    return response


async def show_version(request: Request) -> Response:
    return json_response({"version": _version()})


async def models(request: Request) -> Response:
    serving = serving_of(request)
    return json_response(ModelList([_card(serving, name) for name in serving.names]))


async def model(request: Request) -> Response:
    serving = serving_of(request)
    name = request.path_params["name"]
    serving.check_model(name)
    return json_response(_card(serving, name))


def _card(serving: Serving, name: str) -> ModelCard:
    return ModelCard(
        name, serving.created, serving.max_model_len, serving.name, dict(serving.defaults)
    )


async def metrics(request: Request) -> Response:
    body, content_type = serving_of(request).metrics.scrape()
    return Response(body, headers={"content-type": content_type})


async def stats(request: Request) -> Response:
    """The engine's figures as plain JSON, for the page."""
    serving = serving_of(request)
    values = engine_values(serving.metrics.view())
    plain = {name: by_label[""] for name, by_label in values.items() if "" in by_label}
    return json_response({"model": serving.name, "max_model_len": serving.max_model_len, **plain})


async def page(request: Request) -> Response:
    body, policy = _page()
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
    return Response(body, 200, headers, "text/html")


def _version() -> str:
    try:
        return version("octavo")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


@cache
def _page() -> tuple[bytes, str]:
    """The page, and a policy under which nothing but its own script and style counts."""
    body = (Path(__file__).parent / "page.html").read_bytes()
    script, style = (_source(body, tag) for tag in (b"script", b"style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return body, policy


def _source(body: bytes, tag: bytes) -> str:
    """The one element of this kind, as a source expression of the policy."""
    _, _, rest = body.partition(b"<" + tag + b">")
    content, _, _ = rest.partition(b"</" + tag + b">")
    return f"'sha256-{b64encode(sha256(content).digest()).decode()}'"


def not_found(path: str) -> ApiError:
    return ApiError(404, f"There is no route {path!r:.80}.", code="not_found")
