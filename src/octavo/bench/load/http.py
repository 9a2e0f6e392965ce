"""One HTTP exchange over a connection of its own, its body handed over as it comes.

Owns: connecting, writing the request, parsing the answer, the time of each arrival.
Does not know: what the body says.

Plain asyncio protocols and a parser in C: the client must never be what is measured. The time of
some bytes is taken as soon as the event loop has them, before anything is parsed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

MOST_ERROR_BYTES = 4096
"""Of an answer that is not 200: enough for its message."""


class HttpFault(Exception):
    """The exchange failed below HTTP, or before its answer was whole."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is. `path` is what comes before /v1."""

    host: str
    port: int
    secure: bool
    path: str
    authority: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """`url` with or without http:// and /v1. Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not an http or https address")
        secure = parts.scheme == "https"
        return cls(
            parts.hostname,
            parts.port or (443 if secure else 80),
            secure,
            parts.path.rstrip("/").removesuffix("/v1"),
            parts.netloc.rpartition("@")[2],
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """`error`: the first bytes of the body where `status` is not 200."""

    status: int
    error: bytes = b""


async def exchange(
    target: Target,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    on_body: Callable[[float, bytes], None],
) -> Answer:
    """Calls `on_body(time, bytes)` for each piece of the body of a 200. Raises HttpFault. When
    cancelled it closes the connection, which ends the request."""
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.create_connection(
            lambda: _Exchange(loop, on_body),
            target.host,
            target.port,
            ssl=ssl.create_default_context() if target.secure else None,
        )
    except OSError as error:
        raise HttpFault(f"cannot connect: {error.strerror or error}") from None
    try:
        transport.write(_head(target, method, path, len(body), headers) + body)
        return await protocol.done
    finally:
        transport.abort()


def _head(target: Target, method: str, path: str, length: int, headers: dict[str, str]) -> bytes:
    lines = [
        f"{method} {target.path}{path} HTTP/1.1",
        f"host: {target.authority}",
        f"content-length: {length}",
        "connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
        "",
        "",
    ]
    return "\r\n".join(lines).encode("latin-1")


class _Exchange(asyncio.Protocol):
    """The callbacks of asyncio and of httptools."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_body: Callable[[float, bytes], None]
    ) -> None:
        self.done: asyncio.Future[Answer] = loop.create_future()
        self._on_body = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._status = 0
        self._error = b""
        self._has_length = False

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._fail(f"connection lost: {_told(exc)}")
        elif self._status and not self._has_length:
            # A body without a length ends with its connection.
            self.on_message_complete()
        else:
            self._fail("connection closed before the end of the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status == 200:
            self._on_body(self._now, body)
        elif len(self._error) < MOST_ERROR_BYTES:
            self._error += body

    def on_message_complete(self) -> None:
        if not self.done.done():
            self.done.set_result(Answer(self._status, self._error[:MOST_ERROR_BYTES]))

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(HttpFault(why))


def _told(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
