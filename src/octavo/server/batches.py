"""/v1/batches: making, watching, listing and cancelling batches.

Owns: those routes.
Does not know: how batches are kept or run (batchq).
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.batchq.objects import CreateBatch
from octavo.server.body import json_response, read_body, warn_unknown
from octavo.server.files import batching_of, blocking, owner_of, page, page_size

MAX_PAGE = 100


async def create(request: Request) -> Response:
    batching = batching_of(request)
    body, unknown = await read_body(request, CreateBatch)
    made = await blocking(batching.store.create, owner_of(request), body)
    batching.runner.wake()
    response = json_response(made)
    warn_unknown(response, unknown, CreateBatch)
    return response


async def index(request: Request) -> Response:
    batching = batching_of(request)
    after = request.query_params.get("after")
    limit = page_size(request, 20, MAX_PAGE)
    return page(await blocking(batching.store.page, owner_of(request), after, limit))


async def show(request: Request) -> Response:
    batching, batch_id = batching_of(request), request.path_params["batch_id"]
    return json_response(await blocking(batching.store.get, owner_of(request), batch_id))


async def cancel(request: Request) -> Response:
    batching, batch_id = batching_of(request), request.path_params["batch_id"]
    cancelled = await blocking(batching.store.cancel, owner_of(request), batch_id)
    batching.runner.wake()
    return json_response(cancelled)
