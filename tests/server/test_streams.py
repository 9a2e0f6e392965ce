"""Streams over a scripted engine: heartbeats, silence, clients that leave or do not read."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from support.fake_engine import FakeEngine
from support.live_server import LiveServer, until

BODY = b'{"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":100}'


def open_stream(server: LiveServer, body: bytes = BODY) -> socket.socket:
    connection = server.raw()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        more = connection.recv(65536)
        assert more, got
        got += more
    return got


def test_a25c_heartbeats_while_nothing_flows(start: Any, fake: FakeEngine) -> None:
    """A long wait for the first token: the headers and comments come, then the answer, whole."""
    server = start(fake, heartbeat=0.1)
    server.on_loop(shut(fake))
    with open_stream(server) as connection:
        begun = read_until(connection, b": keep-alive\n\n")
        assert begun.startswith(b"HTTP/1.1 200") and b"data:" not in begun
        more = read_until(connection, b": keep-alive\n\n")
        assert b"data:" not in more
        server.on_loop(let(fake))
        rest = read_until(connection, b"[DONE]")
    assert rest.count(b'"finish_reason":"stop"') == 1


def test_without_heartbeat_the_status_waits_for_the_first_output(
    start: Any, fake: FakeEngine
) -> None:
    server = start(fake, heartbeat=0.0)
    server.on_loop(shut(fake))
    with open_stream(server) as connection:
        until(lambda: len(fake.live) == 1, "the submission")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(10)
        server.on_loop(let(fake))
        read_until(connection, b"[DONE]")


@pytest.mark.parametrize("body", [BODY, BODY.replace(b"true", b"false")], ids=["stream", "whole"])
def test_c03_leaving_before_anything_came(start: Any, fake: FakeEngine, body: bytes) -> None:
    server = start(fake)
    server.on_loop(shut(fake))
    connection = open_stream(server, body)
    until(lambda: len(fake.live) == 1, "the submission")
    connection.close()
    until(lambda: not fake.live, "the abort", 2.0)
    metrics = server.get("/metrics").body.decode()
    assert 'octavo:request_success_total{finished_reason="abort",model_name="tiny"} 1.0' in metrics
    assert 'handler="/v1/chat/completions",method="POST",status="499"} 1.0' in metrics


def test_c03_leaving_with_several_prompts(start: Any, fake: FakeEngine) -> None:
    fake.endless, fake.delay = True, 0.01
    server = start(fake, max_model_len=100_000)
    body = b'{"prompt":["a","b","c"],"stream":true,"n":2}'
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection = server.raw()
    connection.sendall(head.encode() + body)
    read_until(connection, b'"index":5')
    assert len(fake.live) == 3
    connection.close()
    until(lambda: not fake.live, "the abort", 2.0)


def test_a_reader_that_reads_nothing_is_given_up(
    start: Any, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.sse.STALLED_AFTER", 0.3)
    fake.endless = True
    server = start(fake, heartbeat=0.1, max_model_len=1_000_000)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.connect(("127.0.0.1", server.port))
    body = BODY.replace(b"100", b"900000")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    until(lambda: len(fake.live) == 1, "the submission")
    begin = time.monotonic()
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 3}).status == 200
    assert time.monotonic() - begin < 2.0, "others do not wait for it"
    until(lambda: not fake.live, "the end of the stalled stream")
    connection.close()


def test_keep_alive_connections_serve_again(server: LiveServer) -> None:
    """Two requests on one connection, the first of them a stream."""
    with open_stream(server) as connection:
        read_until(connection, b"[DONE]\n\n\r\n0\r\n\r\n")
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b'"status":"ready"' in read_until(connection, b"ready")


async def shut(fake: FakeEngine) -> None:
    fake.gate.clear()


async def let(fake: FakeEngine) -> None:
    fake.gate.set()
