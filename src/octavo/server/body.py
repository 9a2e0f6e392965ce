"""From the bytes of a request to a struct, or a 400 that names the field.

Owns: JSON decoding and its bounds, the wording of type errors, the note about unknown fields.
Does not know: what the fields mean.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.errors import ApiError

T = TypeVar("T", bound=msgspec.Struct)

WARNING_HEADER = "octavo-warning"
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_MAX_NAMED = 8
_MAX_SEARCHED = 256 * 1024
_MAX_MARKS = 1 << 20
"""Commas and opening brackets in a body. Every value that is built needs one, and building more
than a million takes seconds in which nobody else is served (case D02)."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def read_body(request: Request, kind: type[T]) -> tuple[T, list[str]]:
    """Returns the decoded body and the names of its unknown top-level fields."""
    return decode_body(await request.body(), kind)


def decode_body(data: bytes, kind: type[T]) -> tuple[T, list[str]]:
    """Raises ApiError(400) for what is not JSON of the right shape; `param` names the field. Large
    bodies are not looked through for unknown fields."""
    if not data.strip():
        raise ApiError(400, "The body is empty; send a JSON object.", code="invalid_json")
    if len(data) > _MAX_MARKS and sum(map(data.count, (b",", b"[", b"{"))) > _MAX_MARKS:
        raise ApiError(
            400,
            f"The body has more than {_MAX_MARKS} commas and brackets: too many values to read.",
            code="body_too_large",
        )
    try:
        body = _decoder(kind).decode(data)
        names = _fields.decode(data) if len(data) <= _MAX_SEARCHED else {}
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply.", code="invalid_json") from None
    known = kind.__struct_fields__
    return body, [name for name in names if name not in known]


def decode_field(raw: msgspec.Raw, kind: Any, name: str, limit: int) -> Any:
    """A field that was kept as bytes, as `kind`; None for null. Raises ApiError(400), also for more
    than `limit` bytes, which are not decoded."""
    data = bytes(raw)
    if data == b"null":
        return None
    if len(data) > limit:
        raise ApiError(
            400, f"{name} has {len(data)} bytes; the limit is {limit}", name, "field_too_large"
        )
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _type_error(str(error), name) from None
    except RecursionError:
        raise ApiError(400, f"{name} is nested too deeply.", name, "invalid_json") from None


def warn_unknown(response: Response, unknown: list[str], kind: type[msgspec.Struct]) -> None:
    """Name ignored fields in a response header, with the nearest known name where one is near."""
    if header := unknown_warning(unknown, kind):
        response.headers[WARNING_HEADER] = header


def unknown_warning(unknown: list[str], kind: type[msgspec.Struct]) -> str | None:
    if not unknown:
        return None
    notes = []
    for name in unknown[:_MAX_NAMED]:
        if not _SAFE_NAME.fullmatch(name):
            continue
        near = difflib.get_close_matches(name, kind.__struct_fields__, 1, 0.8)
        notes.append(f"{name} (did you mean {near[0]}?)" if near else name)
    more = len(unknown) - len(notes)
    if more:
        notes.append(f"{more} more")
    return "ignored unknown fields: " + ", ".join(notes)


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)


def _type_error(text: str, within: str = "") -> ApiError:
    path = _PATH.search(text)
    param = within + (path.group(1) if path else "")
    message = _PATH.sub("", text)
    if missing := _MISSING.search(message):
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return ApiError(400, f"{param} is missing", param, "missing_field")
    message = message.replace("`", "")
    if not param:
        return ApiError(400, f"The body has the wrong type: {message}", code="invalid_type")
    return ApiError(400, f"{param} has the wrong type: {message}", param, "invalid_type")


def encode(value: Any) -> bytes:
    """JSON of a struct or of plain data."""
    return msgspec.json.encode(value)


async def encode_each(values: Iterable[Any]) -> list[msgspec.Raw]:
    """The values as JSON to be put into a larger value; others are served between them."""
    result = []
    for value in values:
        result.append(msgspec.Raw(encode(value)))
        await asyncio.sleep(0)
    return result


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")
