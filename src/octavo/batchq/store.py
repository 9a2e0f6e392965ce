"""Batches and their rows: every change of state is one transaction.

Owns: the life of a batch's records, ownership, quotas, exactly-once results, the output files.
Does not know: how rows run, or what time it is (`now` is an argument).

    validating -> in_progress -> finalizing -> completed
        |             |  \\-> cancelling -> cancelled
        v             v
      failed        expired         (rows without a result are told of in the error file)
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import sqlalchemy as sa

from octavo.batchq.blobs import Blobs
from octavo.batchq.database import Database, batches, rows
from octavo.batchq.files import Files, Now, insert_file, new_id
from octavo.batchq.objects import (
    LIVE,
    WINDOW_SECONDS,
    Batch,
    CreateBatch,
    Limits,
    LineError,
    LineErrors,
    Purpose,
    Refusal,
    Refused,
    RequestCounts,
    Status,
)
from octavo.batchq.validate import Row, request_body, row_hash

PENDING, DONE, FAILED = "pending", "done", "failed"
_UNRUN = {
    Status.EXPIRED: ("batch_expired", "The batch expired before this row was run."),
    Status.CANCELLED: ("batch_cancelled", "The batch was cancelled before this row was run."),
}
_INSERT = 1000


@dataclass(frozen=True, slots=True)
class Result:
    """What a row came to: an HTTP status and a body, which is JSON."""

    batch_id: str
    row: Row
    status: int
    request_id: str
    body: bytes


class Store:
    """All methods block, and may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        url: str | None = None,
        limits: Limits | None = None,
        now: Now = time.time,
        window: int = WINDOW_SECONDS,
    ) -> None:
        """A batch expires after `window` seconds. Raises DatabaseError."""
        self._window = window
        self.limits = limits or Limits()
        self._now = now
        self._db = Database(folder, url)
        self._blobs = Blobs(folder / "files")
        self.files = Files(self._db, self._blobs, self.limits, now)

    def open_for_running(self) -> None:
        """Take the runner's place, and clear what a crash left. Raises DatabaseError."""
        self._db.lock()
        self.files.sweep()

    def close(self) -> None:
        self._db.close()

    # What clients do

    def create(self, owner: str, asked: CreateBatch) -> Batch:
        """Raises Refusal."""
        asked.check()
        file = self.files.get(owner, asked.input_file_id)
        if file.purpose != Purpose.BATCH:
            message = f"the purpose of {file.id} is {file.purpose!r}; it must be 'batch'"
            raise Refusal(Refused.INVALID, message, "input_file_id")
        now = int(self._now())
        with self._db.begin() as connection:
            live = sa.select(sa.func.count()).where(
                batches.c.owner == owner, batches.c.status.in_(LIVE)
            )
            count = int(connection.execute(live).scalar() or 0)
            if count >= self.limits.max_live:
                raise Refusal(
                    Refused.QUOTA,
                    f"{count} batches of this key are not over; the limit is "
                    f"{self.limits.max_live} (--batch-max-live). Wait for one, or cancel it.",
                    code="too_many_batches",
                )
            values = {
                "id": new_id("batch_"),
                "owner": owner,
                "endpoint": asked.endpoint,
                "input_file_id": file.id,
                "status": str(Status.VALIDATING),
                "metadata": _text(asked.metadata),
                "output_seconds": (
                    asked.output_expires_after.seconds if asked.output_expires_after else None
                ),
                "created_at": now,
                "expires_at": now + self._window,
            }
            connection.execute(sa.insert(batches).values(**values))
        return self.get(owner, str(values["id"]))

    def get(self, owner: str, batch_id: str) -> Batch:
        """Raises Refusal where `owner` has no such batch."""
        with self._db.begin() as connection:
            return _batch(self._row(connection, owner, batch_id))

    def page(self, owner: str, after: str | None, limit: int) -> tuple[list[Batch], bool]:
        """A page, newest first, and whether more follow."""
        query = sa.select(batches).where(batches.c.owner == owner)
        if after is not None:
            query = query.where(batches.c.id < after)
        query = query.order_by(batches.c.id.desc()).limit(limit + 1)
        with self._db.begin() as connection:
            found = [_batch(row) for row in connection.execute(query)]
        return found[:limit], len(found) > limit

    def cancel(self, owner: str, batch_id: str) -> Batch:
        """Raises Refusal for a batch that is over."""
        with self._db.begin() as connection:
            status = self._row(connection, owner, batch_id).status
            if status not in (Status.VALIDATING, Status.IN_PROGRESS, Status.CANCELLING):
                raise Refusal(
                    Refused.CONFLICT,
                    f"{batch_id} is {status}; only a batch that is not over can be cancelled",
                    "batch_id",
                    "batch_not_cancellable",
                )
            self._move(connection, batch_id, Status.CANCELLING)
        return self.get(owner, batch_id)

    # What the runner does

    def live(self) -> list[tuple[str, str]]:
        """(id, owner) of what has work to do, oldest first."""
        query = sa.select(batches.c.id, batches.c.owner).where(batches.c.status.in_(LIVE))
        with self._db.begin() as connection:
            return [(row.id, row.owner) for row in connection.execute(query.order_by(batches.c.id))]

    def begin(self, batch_id: str, found: Sequence[Row]) -> None:
        """Validated: the rows, and that they may run, in one transaction."""
        with self._db.begin() as connection:
            if self._row(connection, None, batch_id).status != Status.VALIDATING:
                return
            for at in range(0, len(found), _INSERT):
                connection.execute(
                    sa.insert(rows),
                    [
                        {
                            "batch_id": batch_id, "number": row.number, "start": row.start,
                            "custom_id": row.custom_id, "size": row.size, "state": PENDING,
                        }
                        for row in found[at : at + _INSERT]
                    ],
                )  # fmt: skip
            self._move(connection, batch_id, Status.IN_PROGRESS, rows_total=len(found))

    def fail(self, batch_id: str, errors: list[LineError]) -> None:
        """The input cannot be run."""
        with self._db.begin() as connection:
            if self._row(connection, None, batch_id).status == Status.VALIDATING:
                self._move(connection, batch_id, Status.FAILED, errors=_text(errors))

    def pending(self, batch_id: str) -> list[Row]:
        """Rows without a result, in the input's order."""
        columns = (rows.c.number, rows.c.custom_id, rows.c.start, rows.c.size)
        query = sa.select(*columns).where(rows.c.batch_id == batch_id, rows.c.state == PENDING)
        with self._db.begin() as connection:
            return [Row(*row) for row in connection.execute(query.order_by(rows.c.number))]

    def pending_count(self) -> int:
        """Of all live batches."""
        query = sa.select(sa.func.count()).where(rows.c.state == PENDING)
        with self._db.begin() as connection:
            return int(connection.execute(query).scalar() or 0)

    def input_path(self, batch_id: str) -> Path:
        with self._db.begin() as connection:
            return self._blobs.path(self._row(connection, None, batch_id).input_file_id)

    def row_body(self, path: Path, batch_id: str, row: Row) -> bytes:
        """What is to be run for a row of the input at `path`."""
        with path.open("rb") as file:
            data = os.pread(file.fileno(), row.size, row.start)
        return request_body(batch_id, row.number, data)

    def record(self, results: Sequence[Result]) -> list[bool]:
        """Commit results in one transaction, each row's once: False where it has one already, or
        its batch is over."""
        with self._db.begin() as connection:
            return [self._record(connection, result) for result in results]

    def _record(self, connection: sa.Connection, result: Result) -> bool:
        ok = result.status < 400
        counter = batches.c.rows_completed if ok else batches.c.rows_failed
        changed = connection.execute(
            sa.update(rows)
            .where(
                rows.c.batch_id == result.batch_id,
                rows.c.number == result.row.number,
                rows.c.state == PENDING,
            )
            .values(state=DONE if ok else FAILED, line=result_line(result))
        ).rowcount
        if changed:
            of_batch = sa.update(batches).where(batches.c.id == result.batch_id)
            connection.execute(of_batch.values({counter: counter + 1}))
        return bool(changed)

    def finish(self, batch_id: str, status: Status) -> None:
        """Assemble the output and error files in the input's order, and end the batch. The contents
        are on disk before one transaction tells of them and drops the rows: a crash in between
        leaves contents that nobody knows of, and this runs again."""
        if status is Status.COMPLETED:
            with self._db.begin() as connection:
                if self._row(connection, None, batch_id).status == Status.IN_PROGRESS:
                    self._move(connection, batch_id, Status.FINALIZING)
        made = {kind: self._assemble(batch_id, kind, status) for kind in (DONE, FAILED)}
        now = int(self._now())
        with self._db.begin() as connection:
            batch = self._row(connection, None, batch_id)
            if batch.status not in LIVE:
                return
            ids: dict[str, str | None] = {}
            for kind, name in ((DONE, "output"), (FAILED, "error")):
                blob = made[kind]
                ids[f"{name}_file_id"] = blob[0] if blob else None
                if blob:
                    insert_file(
                        connection, blob[0], batch.owner, f"{batch_id}_{name}.jsonl",
                        Purpose.OUTPUT, blob[1], now, batch.output_seconds,
                    )  # fmt: skip
            self._move(connection, batch_id, status, **ids)
            connection.execute(sa.delete(rows).where(rows.c.batch_id == batch_id))

    def _assemble(self, batch_id: str, kind: str, status: Status) -> tuple[str, int] | None:
        """(id, size) of a content made of the rows of a `kind`; None where there are none."""
        kinds = (FAILED, PENDING) if kind == FAILED else (kind,)
        query = (
            sa.select(rows.c.number, rows.c.custom_id, rows.c.start, rows.c.size, rows.c.line)
            .where(rows.c.batch_id == batch_id, rows.c.state.in_(kinds))
            .order_by(rows.c.number)
        )
        after = -1

        def fill(target: BinaryIO) -> None:
            nonlocal after
            while True:
                with self._db.begin() as connection:
                    page = connection.execute(
                        query.where(rows.c.number > after).limit(_INSERT)
                    ).all()
                if not page:
                    return
                for found in page:
                    line = found.line
                    if line is None:
                        line = unrun_line(batch_id, Row(*found[:4]), status)
                    target.write(bytes(line) + b"\n")
                after = page[-1].number

        file_id = new_id("file-")
        size = self._blobs.write(file_id, fill)
        if size:
            return file_id, size
        self._blobs.delete(file_id)
        return None

    def _move(
        self, connection: sa.Connection, batch_id: str, status: Status, **values: Any
    ) -> None:
        stamps = {} if status is Status.VALIDATING else {f"{status}_at": int(self._now())}
        connection.execute(
            sa.update(batches)
            .where(batches.c.id == batch_id)
            .values(status=str(status), **stamps, **values)
        )

    def _row(self, connection: sa.Connection, owner: str | None, batch_id: str) -> Any:
        """`owner` None: whoever has it. Locked against other transactions until the end of this."""
        query = sa.select(batches).where(batches.c.id == batch_id).with_for_update()
        if owner is not None:
            query = query.where(batches.c.owner == owner)
        row = connection.execute(query).first()
        if row is None:
            raise Refusal(Refused.NOT_FOUND, f"There is no batch {batch_id!r:.90}.", "batch_id")
        return row


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Unrun(msgspec.Struct):
    code: str
    message: str


class _Result(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None = None
    error: _Unrun | None = None


def result_line(result: Result) -> bytes:
    response = _Response(result.status, result.request_id, msgspec.Raw(result.body))
    line_id = _line_id(result.batch_id, result.row)
    return msgspec.json.encode(_Result(line_id, result.row.custom_id, response))


def unrun_line(batch_id: str, row: Row, status: Status) -> bytes:
    error = _Unrun(*_UNRUN[status])
    return msgspec.json.encode(_Result(_line_id(batch_id, row), row.custom_id, None, error))


def _line_id(batch_id: str, row: Row) -> str:
    return f"batch_req_{row_hash(batch_id, row.number):016x}"


def _text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _batch(row: Any) -> Batch:
    values = {
        name: getattr(row, name)
        for name in Batch.__struct_fields__
        if hasattr(row, name) and name not in ("metadata", "errors")
    }
    counts = RequestCounts(row.rows_total, row.rows_completed, row.rows_failed)
    metadata = msgspec.json.decode(row.metadata) if row.metadata else None
    errors = row.errors and LineErrors(msgspec.json.decode(row.errors, type=list[LineError]))
    return Batch(**values, request_counts=counts, metadata=metadata, errors=errors or None)
