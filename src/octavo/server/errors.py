"""Errors in OpenAI's shape: one exception type, and what turns other faults into it.

Owns: `ApiError`, its JSON form, and the mapping from faults of core and engine to HTTP.
Does not know: routes, or how an error reaches the client (a response, or an event of a stream).
"""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from octavo.core.params import ParamError
from octavo.core.request import DEADLINE_EXCEEDED, Output, Refused

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
UNAVAILABLE = frozenset({"draining", "engine_failed", "engine_closed"})
"""Codes of refusals and failures that say nothing about the request: try again, or elsewhere."""
OVERLOADED = frozenset({"queue_full", "queue_delay", "deadline_unreachable"})
"""Codes of refusals that say that there is too much to do: the same request is taken later."""
RETRY_AFTER = 1.0
"""Seconds a client should wait where nothing better is known."""


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """`{"error": {"message", "type", "param", "code"}}`, as a body and as an event of a stream."""

    error: ErrorDetail


class ApiError(Exception):
    """A request that is answered with an error. `retry_after` (seconds) becomes a header."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after)))

    def body(self) -> bytes:
        kind = _KINDS.get(self.status, "invalid_request_error")
        return msgspec.json.encode(
            ErrorBody(ErrorDetail(self.message, kind, self.param, self.code))
        )

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, "application/json")


def internal_error() -> ApiError:
    """What a client learns of a fault of ours: nothing but the request id's log line."""
    return ApiError(
        500, "Internal error; the server's log has the details under this request's id."
    )


def from_param(error: ParamError) -> ApiError:
    return ApiError(400, str(error), error.param, error.code)


def from_refused(error: Refused) -> ApiError:
    """429 for too much load, 503 where the engine does not take work now, 504 for a request whose
    time was over before it came, else 400."""
    message = str(error)
    if error.code == DEADLINE_EXCEEDED:
        return ApiError(504, message, error.param, error.code)
    if error.code in OVERLOADED:
        return ApiError(429, message, error.param, error.code, error.retry_after or RETRY_AFTER)
    if error.code in UNAVAILABLE:
        return ApiError(503, message, error.param, error.code, error.retry_after or RETRY_AFTER)
    return ApiError(400, message, error.param, error.code)


def from_output(output: Output) -> ApiError:
    """The error of a choice that ended with finish_reason "error" (or was aborted from inside)."""
    message = output.error or "The generation was cut off."
    if output.error_code in UNAVAILABLE:
        return ApiError(503, message, None, output.error_code, RETRY_AFTER)
    if output.error_code == DEADLINE_EXCEEDED:
        return ApiError(504, message, "timeout", output.error_code)
    return ApiError(500, message, None, output.error_code)
