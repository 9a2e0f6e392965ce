"""What surrounds every route: the request's record, faults, and limits on its body.

Owns: request ids, the last catch for exceptions, 413 and 408 for bodies.
Does not know: keys (auth) or routes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.errors import ApiError, internal_error
from octavo.server.record import CLIENT_CLOSED, Record, new_record

logger = logging.getLogger("octavo.server")

BODY_TIMEOUT = 120.0
"""Seconds a client may take to send a body."""

Finished = Callable[[Record], None]


class RecordMiddleware:
    """Outermost: makes the record, answers 500 for what nobody caught, logs one line a request.

    `template` gives the route's template of a served scope (a bounded set, for labels);
    `finished` is told of every record when its request is over.
    """

    def __init__(self, app: ASGIApp, template: Callable[[Scope], str], finished: Finished) -> None:
        self.app = app
        self.template = template
        self.finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = new_record(scope)
        scope.setdefault("state", {})["record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = list(message.get("headers", ()))
                headers.append((b"x-request-id", record.request_id.encode()))
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            record.error = type(error).__name__
            logger.exception("request %s failed", record.request_id)
            if not record.status:
                await internal_error().response()(scope, receive, send_with_id)
        finally:
            record.status = record.status or CLIENT_CLOSED
            record.key_name = scope["state"].get("key_name")
            record.total = time.monotonic() - record.arrival
            record.route = self.template(scope)
            self.finished(record)
            record.log()


class BodyLimitMiddleware:
    """413 for bodies over `limit` bytes, declared or counted; 408 for those that never end.
    `by_path` has other limits of single paths, with the options that set them."""

    def __init__(
        self, app: ASGIApp, limit: int, by_path: Mapping[str, tuple[int, str]] | None = None
    ) -> None:
        self.app = app
        self.limit = (limit, "--max-body-size")
        self.by_path = by_path or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit, option = self.by_path.get(scope["path"], self.limit)
        too_large = _too_large(limit, option)
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > limit:
                await too_large.response()(scope, receive, send)
                return
        received = 0
        complete = False
        deadline = time.monotonic() + BODY_TIMEOUT

        async def bounded_receive() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise ApiError(
                    408,
                    f"The body did not arrive within {BODY_TIMEOUT:.0f} seconds.",
                    headers={"connection": "close"},
                ) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > limit:
                raise too_large
            return message

        await self.app(scope, bounded_receive, send)


def _too_large(limit: int, option: str) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than the limit of {limit} bytes ({option}).",
        code="body_too_large",
        headers={"connection": "close"},
    )
