"""Keys and roles: every route is guarded unless it stands in the allow-list (case D04)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from octavo.server.auth import (
    OPEN_PATHS,
    KeyFileError,
    PublicAddressError,
    Role,
    check_exposure,
    load_keys,
)
from support.fake_engine import FakeEngine
from support.live_server import LiveServer

HASH = hashlib.sha256(b"m-secret").hexdigest()


@pytest.fixture
def keys(tmp_path: Path) -> Any:
    file = tmp_path / "keys"
    file.write_text(f"# people\nclient:alice:sk-alice\n\nmetrics:prom:sha256:{HASH}\n")
    return load_keys(["sk-root", "sk-other"], str(file))


@pytest.fixture
def guarded(start: Any, fake: FakeEngine, keys: Any) -> LiveServer:
    server: LiveServer = start(fake, {"keys": keys})
    return server


def test_key_file(keys: Any) -> None:
    assert [(key.name, key.role) for key in keys] == [
        ("key-1", Role.ADMIN),
        ("key-2", Role.ADMIN),
        ("alice", Role.CLIENT),
        ("prom", Role.METRICS),
    ]
    assert not any(b"sk-" in key.digest or "sk-" in repr(key) for key in keys)


@pytest.mark.parametrize(
    "line",
    ["sk-alone", "boss:a:k", "client:a b:k", "client:a:", "client::k", "client:a:sha256:zz"],
)
def test_bad_key_lines_are_named_without_the_key(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# one\n{line}\n")
    with pytest.raises(KeyFileError, match="line 2") as error:
        load_keys([], str(file))
    assert "sk-alone" not in str(error.value)


def test_missing_or_empty_key_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot read"):
        load_keys([], str(tmp_path / "none"))
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(KeyFileError, match="no key"):
        load_keys([], str(tmp_path / "empty"))
    with pytest.raises(KeyFileError, match="empty"):
        load_keys([" "], None)


def test_a_public_address_needs_a_key(keys: Any) -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.2"):
        check_exposure(host, (), False)
    for host in ("0.0.0.0", "::", "", "10.0.0.1", "example.org"):
        with pytest.raises(PublicAddressError, match="--api-key"):
            check_exposure(host, (), False)
        check_exposure(host, keys, False)
        check_exposure(host, (), True)


def test_d04_every_route_but_the_open_ones(guarded: LiveServer) -> None:
    """Enumerated from the application itself: a new route is guarded without any code."""

    async def secret(request: Request) -> Response:
        return PlainTextResponse("secret")

    async def add() -> None:
        guarded.app.router.routes.append(Route("/brand-new", secret))

    guarded.on_loop(add())
    routes = [(route.path, method) for route in guarded.app.routes for method in route.methods]
    assert len(routes) > 12
    guarded.serving.begin_drain = lambda timeout: 0.0  # nobody runs this server
    for path, method in routes:
        path = path.replace("{name:path}", "tiny")
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer "},
            {"authorization": "Basic sk-root"},
            {"authorization": "sk-root"},
        ):
            answer = guarded.request(method, f"{path}?api_key=sk-root", None, headers)
            if path in OPEN_PATHS:
                assert answer.status == 200
                continue
            assert answer.status == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert answer.error["type"] == "authentication_error"
        answer = guarded.request(method, path, None, {"authorization": "bearer sk-root"})
        if path.startswith(("/v1/files", "/v1/batches")) and method != "HEAD":
            assert answer.error["code"] == "batches_disabled", "past the guard, but none are kept"
        elif not path.startswith(("/v1/files", "/v1/batches")):
            assert answer.status in (200, 202, 400)
    assert guarded.get("/brand-new", authorization="Bearer sk-alice").status == 403
    assert guarded.get("/brand-new", authorization="Bearer sk-root").body == b"secret"
    assert guarded.get("/no-such-route").status == 401
    for trick in ("/health/", "//health", "/Health", "/health/../v1/models", "/%2e/v1/models"):
        assert guarded.get(trick).status == 401, trick


@pytest.mark.parametrize(
    ("key", "models", "metrics", "stats"),
    [
        ("sk-alice", 200, 403, 200),
        ("m-secret", 403, 200, 200),
        ("sk-root", 200, 200, 200),
        ("sk-other", 200, 200, 200),
    ],
)
def test_roles(guarded: LiveServer, key: str, models: int, metrics: int, stats: int) -> None:
    for path, status in (("/v1/models", models), ("/metrics", metrics), ("/stats", stats)):
        assert guarded.get(path, authorization=f"Bearer {key}").status == status


def test_two_authorization_headers_are_no_key(guarded: LiveServer) -> None:
    with guarded.raw() as connection:
        connection.sendall(
            b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"authorization: Bearer sk-root\r\nauthorization: Bearer wrong\r\n\r\n"
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_the_log_names_the_key_and_nothing_secret(
    guarded: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "octavo"):
        body = {"prompt": "the-content", "user": "the-user"}
        guarded.post("/v1/completions", body, authorization="Bearer sk-alice")
        guarded.post("/v1/completions", body, authorization="Bearer sk-mistyped")
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), guarded.loop).result(5)
    line = next(r.getMessage() for r in caplog.records if "status=200" in r.getMessage())
    assert "key=alice" in line and "prompt_tokens=12" in line and "output_tokens=3" in line
    assert "ttft=" in line and "finish=stop" in line and "route=/v1/completions" in line
    everything = "".join(record.getMessage() for record in caplog.records)
    for secret in ("sk-alice", "sk-mistyped", "the-content", "the-user"):
        assert secret not in everything


def test_cors(start: Any, fake: FakeEngine, keys: Any) -> None:
    server = start(fake, {"keys": keys, "allowed_origins": ("https://chat.example",)})
    asked = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    allowed = server.request("OPTIONS", "/v1/completions", None, asked)
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
    other = {**asked, "origin": "https://evil.example"}
    refused = server.request("OPTIONS", "/v1/completions", None, other)
    assert "access-control-allow-origin" not in refused.headers
    unauthorised = server.get("/v1/models", origin="https://chat.example")
    assert unauthorised.status == 401, "the browser must be able to read why"
    assert unauthorised.headers["access-control-allow-origin"] == "https://chat.example"


def test_without_cors_no_origin_is_let_in(server: LiveServer) -> None:
    answer = server.get("/v1/models", origin="https://evil.example")
    assert "access-control-allow-origin" not in answer.headers
