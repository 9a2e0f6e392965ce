"""Durable batches behind the server: what a row runs through, and the life of store and runner.

Owns: running a request of a batch by the same route functions that HTTP requests go to, and
`Batching`, which opens, starts and ends the parts.
Does not know: how rows are kept (batchq.store) or scheduled (batchq.runner).

SQLAlchemy is imported only here, when batches are asked for: it takes a third of a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Message

from octavo.batchq.objects import WINDOW_SECONDS, Limits
from octavo.config import Options
from octavo.core.params import ParamError
from octavo.core.request import Refused
from octavo.server import chat, completions
from octavo.server.errors import ApiError, from_param, from_refused, internal_error
from octavo.server.record import new_record, record_of

if TYPE_CHECKING:
    from octavo.batchq.runner import Response, Runner
    from octavo.batchq.store import Store

logger = logging.getLogger("octavo.server")

HANDLERS = {"/v1/chat/completions": chat.create, "/v1/completions": completions.create}


class BatchSetupError(ValueError):
    """Batches were asked for and cannot be offered; the message says what to do."""


def open_store(options: Options) -> Store | None:
    """None where no batches were asked for. Raises BatchSetupError."""
    if options.batch_dir is None:
        if options.batch_database_url is not None:
            raise BatchSetupError(
                "--batch-database-url needs --batch-dir DIR, where contents of files are kept"
            )
        return None
    return open_folder(options, Path(options.batch_dir), options.batch_database_url)


def open_folder(
    options: Options, folder: Path, url: str | None = None, window: int = WINDOW_SECONDS
) -> Store:
    """A store that nobody else runs; the caller closes it. Raises BatchSetupError."""
    try:
        import python_multipart  # noqa: F401

        from octavo.batchq.database import DatabaseError
        from octavo.batchq.store import Store
    except ImportError as error:
        raise BatchSetupError(
            f"batches need the extra: pip install 'octavo[batch]' ({error})"
        ) from None
    limits = Limits(
        max_rows=options.batch_max_rows,
        max_file_bytes=options.batch_max_file_size,
        max_live=options.batch_max_live,
        max_row_bytes=options.max_body_size,
    )
    try:
        store = Store(folder, url, limits, window=window)
        try:
            store.open_for_running()
        except BaseException:
            store.close()
            raise
    except DatabaseError as error:
        raise BatchSetupError(str(error)) from None
    except OSError as error:
        raise BatchSetupError(f"cannot use the batch directory {folder}: {error}") from None
    return store


class Rows:
    """Runs single requests by the route functions, as their keys, without a socket."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, url: str, body: bytes, owner: str, request_id: str) -> Response:
        from octavo.batchq.runner import Response

        request = self._request(url, body, owner, request_id)
        try:
            answer = await HANDLERS[url](request)
        except ApiError as error:
            answer = error.response()
        except ParamError as error:
            answer = from_param(error).response()
        except Refused as error:
            answer = from_refused(error).response()
        except Exception:
            logger.exception("request %s of a batch failed", request_id)
            answer = internal_error().response()
        retry = answer.headers.get("retry-after")
        return Response(answer.status_code, bytes(answer.body), float(retry) if retry else None)

    def _request(self, url: str, body: bytes, owner: str, request_id: str) -> Request:
        scope = {
            "type": "http",
            "method": "POST",
            "path": url,
            "query_string": b"",
            "headers": [(b"x-request-id", request_id.encode())],
            "app": self._app,
        }
        scope["state"] = {"record": new_record(scope), "key_name": owner or None}
        record_of(scope).key_name = owner or None
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                await asyncio.Future()  # nobody ever hangs up
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        return Request(scope, receive)


class Batching:
    """Store and runner of one server. `close` may be called whatever came before."""

    def __init__(
        self,
        store: Store,
        app: Starlette,
        in_flight: int,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        from octavo.batchq.runner import Runner

        self.store = store
        self.runner: Runner = Runner(store, Rows(app), in_flight, on_change=on_change)

    def values(self) -> dict[str, float]:
        """What the metrics show."""
        counts = self.runner.counts
        return {
            "batches_live": counts.live,
            "batch_rows_pending": counts.pending,
            "batch_rows_running": counts.running,
            "batch_rows_done": counts.done,
            "batch_rows_failed": counts.failed,
        }

    async def close(self) -> None:
        await self.runner.close()
        await asyncio.to_thread(self.store.close)
