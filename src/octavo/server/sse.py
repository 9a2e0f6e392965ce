"""Answers that last: server-sent events, and work that ends when the client goes away.

Owns: the event format, heartbeats, watching the connection, the bound on a reader that has stopped.
Does not know: what the events say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.errors import ApiError, internal_error
from octavo.server.record import record_of

T = TypeVar("T")
logger = logging.getLogger("octavo.server")

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": keep-alive\n\n"
STALLED_AFTER = 60.0
"""Seconds that one write may wait for a client that reads nothing, before it is given up."""
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class ClientStalled(Exception):
    """The client keeps the connection open but reads nothing."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled (and ClientGone raised) if the client goes away.

    The body must have been read: `receive` then only tells of the disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _cancel(task, gone)


class EventStream(Response):
    """Sends `events` as they come, each an encoded event.

    The status is decided by the first event: an ApiError raised before it becomes an ordinary
    error response. After `heartbeat` seconds of silence (0: never) the response begins, if it has
    not, and a comment is sent. An ApiError later becomes an error event, and the stream ends
    without [DONE]. Closing `events` (also when the client goes away) must free what stands behind.
    """

    media_type = "text/event-stream"
    closing = DONE

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        heartbeat: float,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(headers={**_HEADERS, **(headers or {})})
        # The length is not known, and `Response` sets one.
        del self.headers["content-length"]
        self.events = events
        self.heartbeat = heartbeat
        self._started = False
        self._last_write = time.monotonic()
        self._writing = False

    def failure(self, error: ApiError) -> bytes:
        """How an error is told within the stream."""
        return event(error.body())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        producer = asyncio.ensure_future(self._produce(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while True:
                await asyncio.wait(
                    {producer, gone}, timeout=self._wait(), return_when=asyncio.FIRST_COMPLETED
                )
                if producer.done():
                    producer.result()
                    return
                if gone.done():
                    raise ClientGone
                if self._stalled():
                    raise ClientStalled
                if self._silent():
                    await self._heartbeat(send)
        except (ClientGone, ClientStalled) as error:
            record_of(scope).error = type(error).__name__
        finally:
            await _cancel(producer, gone)

    async def _produce(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for data in self.events:
                await self._write(send, data)
            await self._write(send, self.closing, last=True)
        except ApiError as error:
            record_of(scope).error = error.code or "error"
            if not self._started:
                await error.response()(scope, receive, send)
            else:
                await self._write(send, self.failure(error), last=True)
        except Exception:
            if not self._started:
                raise
            logger.exception("request %s failed in its stream", record_of(scope).request_id)
            record_of(scope).error = "internal"
            await self._write(send, self.failure(internal_error()), last=True)
        finally:
            await self.events.aclose()

    async def _write(self, send: Send, data: bytes, last: bool = False) -> None:
        self._writing = True
        self._last_write = time.monotonic()
        if not self._started:
            self._started = True
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
        await send({"type": "http.response.body", "body": data, "more_body": not last})
        self._writing = False

    async def _heartbeat(self, send: Send) -> None:
        try:
            async with asyncio.timeout(STALLED_AFTER):
                await self._write(send, HEARTBEAT)
        except TimeoutError:
            raise ClientStalled from None

    def _wait(self) -> float:
        """Seconds until the connection has to be looked at again."""
        limit = STALLED_AFTER if self._writing or not self.heartbeat else self.heartbeat
        return max(0.0, self._last_write + limit - time.monotonic()) + 0.001

    def _silent(self) -> bool:
        if not self.heartbeat or self._writing:
            return False
        return time.monotonic() - self._last_write >= self.heartbeat

    def _stalled(self) -> bool:
        return self._writing and time.monotonic() - self._last_write >= STALLED_AFTER


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel and wait, so that what they hold is free when this returns."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
