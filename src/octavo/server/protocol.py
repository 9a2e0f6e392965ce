"""uvicorn's httptools protocol with bounds on the head of a request.

Owns: limits on header bytes and header count, and the time a client may take to send a head.
Does not know: bodies (limits) or anything above HTTP.

The parser itself has no limits: a header of 100 MB would be collected in memory, and a client that
sends nothing would hold its connection for ever.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
HEAD_TIMEOUT = 30.0
"""Seconds from the first to the last byte of a request's head."""


class BoundedProtocol(HttpToolsProtocol):
    """Answers 431 to a head that is too large, and closes a connection whose head never ends."""

    _head_bytes = 0
    _in_head = True
    _refused = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._head_too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # Data after the head in the same read counted too; that only matters while in the head.
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse("431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._head_too_slow)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        if len(self.headers) > MAX_HEADERS or _size(self.headers) > MAX_HEAD_BYTES:
            self._refuse("431 Request Header Fields Too Large")
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def _head_too_slow(self) -> None:
        self._head_timer = None
        self._refuse("408 Request Timeout")

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: str) -> None:
        """Answer without the application (the request has no scope yet) and close."""
        self._refused = True
        if not self.transport.is_closing():
            head = f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode())
            self.transport.close()


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in headers)
