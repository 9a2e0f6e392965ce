"""/v1/files: uploads for batches, and what batches leave.

Owns: those routes: forms, queries, pages.
Does not know: where files are kept (batchq.files).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from octavo.batchq.objects import ExpiresAfter, FileObject, Refusal, Refused
from octavo.server.body import json_response
from octavo.server.errors import ApiError

if TYPE_CHECKING:
    from octavo.server.batching import Batching

T = TypeVar("T")
_STATUS = {Refused.NOT_FOUND: 404, Refused.INVALID: 400, Refused.CONFLICT: 409, Refused.QUOTA: 429}
_EXPIRES = re.compile(r"expires_after\[(anchor|seconds)\]")
FORM_OVERHEAD = 64 * 1024
"""What a form may have beside the file's content."""
MAX_PAGE = 10_000


class Page(Struct):
    data: list[Any]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class Deleted(Struct):
    id: str
    object: str = "file"
    deleted: bool = True


def batching_of(request: Request) -> Batching:
    """Raises ApiError(404) on a server without batches."""
    batching: Batching | None = request.app.state.batching
    if batching is None:
        raise ApiError(
            404,
            "This server keeps no files and runs no batches; start it with --batch-dir DIR.",
            code="batches_disabled",
        )
    return batching


def owner_of(request: Request) -> str:
    """Whose files and batches a request sees: its key's name, or everybody's without keys."""
    return str(request.scope["state"].get("key_name") or "")


async def blocking(work: Callable[..., T], *args: Any) -> T:
    """A call of the store, off the event loop. Raises ApiError for what it refuses, and for texts
    that PostgreSQL cannot hold."""
    if any(isinstance(arg, str) and "\0" in arg for arg in args):
        raise ApiError(400, "names and ids may not hold the character NUL", code="invalid_text")
    try:
        return await asyncio.to_thread(work, *args)
    except Refusal as refusal:
        raise ApiError(_STATUS[refusal.kind], str(refusal), refusal.param, refusal.code) from None


def page(found: tuple[list[Any], bool]) -> Response:
    data, more = found
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return json_response(Page(data, more, *ends))


def page_size(request: Request, default: int, most: int) -> int:
    """The query's `limit`. Raises ApiError(400)."""
    text = request.query_params.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise ApiError(400, f"limit is {text!r:.20}; it must be from 1 to {most}", "limit")
    return int(text)


async def upload(request: Request) -> Response:
    """A multipart form with `file`, `purpose` and perhaps `expires_after[...]`."""
    batching = batching_of(request)
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise ApiError(400, "Send a multipart/form-data body with file and purpose.", "file")
    async with request.form(max_files=1, max_fields=8) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise ApiError(400, "file is missing", "file", "missing_field")
        purpose = form.get("purpose")
        if not isinstance(purpose, str):
            raise ApiError(400, "purpose is missing", "purpose", "missing_field")
        name = (file.filename or "upload")[:255]
        made = await blocking(
            batching.store.files.add, owner_of(request), file.file, name, purpose, _expiry(form)
        )
    return json_response(made)


def _expiry(form: FormData) -> ExpiresAfter | None:
    given = {}
    for name, value in form.items():
        if (match := _EXPIRES.fullmatch(name)) and isinstance(value, str):
            given[match[1]] = value
    if not given:
        return None
    seconds = given.get("seconds", "")
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 12):
        raise ApiError(
            400, f"expires_after.seconds is {seconds!r:.20}; it must be a number of seconds",
            "expires_after.seconds",
        )  # fmt: skip
    return ExpiresAfter(given.get("anchor", ""), int(seconds))


async def index(request: Request) -> Response:
    batching = batching_of(request)
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, f"order is {order!r:.20}; it must be 'asc' or 'desc'", "order")
    return page(
        await blocking(
            batching.store.files.page, owner_of(request), query.get("purpose"),
            query.get("after"), page_size(request, MAX_PAGE, MAX_PAGE), order == "desc",
        )
    )  # fmt: skip


async def show(request: Request) -> Response:
    return json_response(await _file(request))


async def content(request: Request) -> Response:
    batching, file_id = batching_of(request), request.path_params["file_id"]
    file = await _file(request)
    path = await blocking(batching.store.files.content, owner_of(request), file_id)
    return FileResponse(path, media_type="application/octet-stream", filename=file.filename)


async def delete(request: Request) -> Response:
    batching, file_id = batching_of(request), request.path_params["file_id"]
    await blocking(batching.store.files.delete, owner_of(request), file_id)
    return json_response(Deleted(file_id))


async def _file(request: Request) -> FileObject:
    batching, file_id = batching_of(request), request.path_params["file_id"]
    return await blocking(batching.store.files.get, owner_of(request), file_id)
