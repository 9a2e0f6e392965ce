"""Files: uploads and results, each with an owner.

Owns: records of files, quotas on their size, expiry, and that record and content agree.
Does not know: batches, but that a file in use stays (`in_use` tells).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa

from octavo.batchq.blobs import Blobs, copy_bounded
from octavo.batchq.database import Database, batches, files
from octavo.batchq.objects import (
    LIVE,
    ExpiresAfter,
    FileObject,
    Limits,
    Purpose,
    Refusal,
    Refused,
)

Now = Callable[[], float]


def new_id(prefix: str) -> str:
    """Ids sort by the time they were made."""
    return f"{prefix}{time.time_ns():016x}{secrets.randbits(64):016x}"


class Files:
    """All methods block, and may be called from any thread."""

    def __init__(self, database: Database, blobs: Blobs, limits: Limits, now: Now) -> None:
        self._db = database
        self._blobs = blobs
        self._limits = limits
        self._now = now

    def add(
        self,
        owner: str,
        source: BinaryIO,
        filename: str,
        purpose: str,
        expires: ExpiresAfter | None = None,
    ) -> FileObject:
        """Keep an upload. Raises Refusal."""
        if purpose != Purpose.BATCH:
            raise Refusal(
                Refused.INVALID, f"purpose is {purpose!r:.40}; only 'batch' is offered", "purpose"
            )
        if expires is not None:
            expires.check("expires_after")
        file_id = new_id("file-")
        limit = self._limits.max_file_bytes

        def fill(target: BinaryIO) -> None:
            if copy_bounded(source, target, limit) is None:
                raise Refusal(
                    Refused.INVALID,
                    f"the file has more than {limit} bytes (--batch-max-file-size)",
                    "file",
                    "file_too_large",
                )

        size = self._blobs.write(file_id, fill)
        with self._db.begin() as connection:
            return insert_file(
                connection, file_id, owner, filename, Purpose.BATCH, size, int(self._now()),
                expires.seconds if expires else None,
            )  # fmt: skip

    def get(self, owner: str, file_id: str) -> FileObject:
        """Raises Refusal where `owner` has no such file."""
        with self._db.begin() as connection:
            return self._get(connection, owner, file_id)

    def content(self, owner: str, file_id: str) -> Path:
        self.get(owner, file_id)
        return self._blobs.path(file_id)

    def page(
        self, owner: str, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> tuple[list[FileObject], bool]:
        """A page, and whether more follow."""
        order = files.c.id.desc() if newest_first else files.c.id.asc()
        query = sa.select(files).where(self._visible(owner)).order_by(order).limit(limit + 1)
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        if after is not None:
            query = query.where(files.c.id < after if newest_first else files.c.id > after)
        with self._db.begin() as connection:
            found = [file_object(row) for row in connection.execute(query)]
        return found[:limit], len(found) > limit

    def delete(self, owner: str, file_id: str) -> None:
        """Raises Refusal where there is none, or a live batch reads it."""
        with self._db.begin() as connection:
            self._get(connection, owner, file_id)
            user = connection.execute(self._users().where(batches.c.input_file_id == file_id))
            if batch_id := user.scalar():
                raise Refusal(
                    Refused.CONFLICT,
                    f"{file_id} is the input of {batch_id}, which is not over; cancel that first",
                    "file_id",
                    "file_in_use",
                )
            connection.execute(sa.delete(files).where(files.c.id == file_id))
        self._blobs.delete(file_id)

    def expire(self) -> int:
        """Delete what is past its expiry, but for inputs in use; returns how many."""
        used = sa.select(batches.c.input_file_id).where(batches.c.status.in_(LIVE))
        over = files.c.expires_at <= int(self._now())
        with self._db.begin() as connection:
            query = sa.select(files.c.id).where(over, files.c.id.not_in(used))
            gone = [row.id for row in connection.execute(query)]
            if gone:
                connection.execute(sa.delete(files).where(files.c.id.in_(gone)))
        for file_id in gone:
            self._blobs.delete(file_id)
        return len(gone)

    def sweep(self) -> int:
        """Delete contents without a record. Only while nobody uploads: at the start."""
        with self._db.begin() as connection:
            known = [row.id for row in connection.execute(sa.select(files.c.id))]
        return self._blobs.sweep(known)

    def _get(self, connection: sa.Connection, owner: str, file_id: str) -> FileObject:
        query = sa.select(files).where(self._visible(owner), files.c.id == file_id)
        row = connection.execute(query).first()
        if row is None:
            raise Refusal(Refused.NOT_FOUND, f"There is no file {file_id!r:.90}.", "file_id")
        return file_object(row)

    def _visible(self, owner: str) -> Any:
        alive = files.c.expires_at.is_(None) | (files.c.expires_at > int(self._now()))
        return (files.c.owner == owner) & alive

    def _users(self) -> Any:
        return sa.select(batches.c.id).where(batches.c.status.in_(LIVE)).limit(1)


def insert_file(
    connection: sa.Connection,
    file_id: str,
    owner: str,
    filename: str,
    purpose: Purpose,
    size: int,
    now: int,
    seconds: int | None,
) -> FileObject:
    """The record of a content that is on disk already; `seconds` is how long it is kept."""
    expires_at = None if seconds is None else now + seconds
    made = FileObject(file_id, size, now, filename, str(purpose), expires_at)
    columns = [column.name for column in files.columns if column.name != "owner"]
    values = {name: getattr(made, name) for name in columns}
    connection.execute(sa.insert(files).values(owner=owner, **values))
    return made


def file_object(row: Any) -> FileObject:
    return FileObject(row.id, row.bytes, row.created_at, row.filename, row.purpose, row.expires_at)
