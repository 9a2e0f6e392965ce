"""The database: tables, schema versions, migrations, and who may run on it.

Owns: SQLite and PostgreSQL through SQLAlchemy, how durable a commit is, the version check, the lock
that keeps a second runner out.
Does not know: what the rows mean (store).

A schema newer than this code is refused. Before an older SQLite schema is brought up a copy is left
beside it (`batches.db.v1`): going back is putting it in place again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

FILE = "batches.db"
LOCK_KEY = 0x6F637461766F
_LOCK_PATIENCE = 10
"""Seconds to wait for a PostgreSQL session of a process that was killed to be noticed."""

tables = sa.MetaData()
schema = sa.Table("octavo_schema", tables, sa.Column("version", sa.Integer, nullable=False))
files = sa.Table(
    "octavo_files",
    tables,
    sa.Column("id", sa.String(80), primary_key=True),
    sa.Column("owner", sa.String(80), nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("purpose", sa.String(20), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Index("octavo_files_owner", "owner", "id"),
)
batches = sa.Table(
    "octavo_batches",
    tables,
    sa.Column("id", sa.String(80), primary_key=True),
    sa.Column("owner", sa.String(80), nullable=False),
    sa.Column("endpoint", sa.String(80), nullable=False),
    sa.Column("input_file_id", sa.String(80), nullable=False),
    sa.Column("status", sa.String(20), nullable=False, index=True),
    sa.Column("metadata", sa.Text),
    sa.Column("errors", sa.Text),
    sa.Column("output_file_id", sa.String(80)),
    sa.Column("error_file_id", sa.String(80)),
    sa.Column("output_seconds", sa.BigInteger),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    *(
        sa.Column(f"{name}_at", sa.BigInteger)
        for name in (
            "in_progress", "finalizing", "completed", "failed", "expired", "cancelling",
            "cancelled",
        )
    ),
    sa.Column("rows_total", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("rows_completed", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("rows_failed", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("octavo_batches_owner", "owner", "id"),
)  # fmt: skip
rows = sa.Table(
    "octavo_batch_rows",
    tables,
    sa.Column("batch_id", sa.String(80), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("custom_id", sa.Text, nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("line", sa.LargeBinary),
)

Migration = Callable[[sa.Connection], None]


def _first(connection: sa.Connection) -> None:
    tables.create_all(connection)


MIGRATIONS: tuple[Migration, ...] = (_first,)
"""Entry i brings version i to version i + 1. Entries are never changed, only added: `_first` must
then be frozen as it was."""


class DatabaseError(Exception):
    """The database cannot be used; the message says why and what to do."""


class Database:
    """Open and at the newest schema, or DatabaseError."""

    def __init__(
        self, folder: Path, url: str | None = None, migrations: Sequence[Migration] = MIGRATIONS
    ) -> None:
        self._file = folder / FILE
        self._lock: int | None = None
        self._lock_session: sa.Connection | None = None
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what clients say is theirs
        self.engine = _engine(url, self._file)
        self.shown = self.engine.url.render_as_string(hide_password=True)
        try:
            self._migrate(migrations)
        except sa.exc.SQLAlchemyError as error:
            self.engine.dispose()
            cause = getattr(error, "orig", None) or error
            raise DatabaseError(f"cannot use the database {self.shown}: {cause}") from None
        except BaseException:
            self.engine.dispose()
            raise

    def begin(self) -> AbstractContextManager[sa.Connection]:
        """One transaction; committed at the end, durable by then."""
        return self.engine.begin()

    def lock(self) -> None:
        """Take the right to run rows. Raises DatabaseError where another process has it; the
        system frees it when the process ends, however it ends."""
        descriptor = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise DatabaseError(
                f"the batch directory {self._folder} is in use by another process; "
                "each server and each run needs its own"
            ) from None
        self._lock = descriptor
        if self.engine.dialect.name == "postgresql":
            self._lock_session = self._advisory()

    def _advisory(self) -> sa.Connection:
        """The lock ends with its session, and that with the process."""
        session = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            session.execute(sa.text(f"SET lock_timeout = '{_LOCK_PATIENCE}s'"))
            session.execute(sa.select(sa.func.pg_advisory_lock(LOCK_KEY)))
        except sa.exc.OperationalError:
            session.close()
            raise DatabaseError(
                f"another server runs batches on {self.shown}; give each its own database"
            ) from None
        return session

    def close(self) -> None:
        if self._lock_session is not None:
            self._lock_session.invalidate()
            self._lock_session.close()
            self._lock_session = None
        self.engine.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        newest = len(migrations)
        with self.begin() as connection:
            version = self._version(connection)
        if version > newest:
            raise DatabaseError(
                f"the database {self.shown} has schema version {version}, made by a newer Octavo; "
                f"this one knows up to {newest}. Install the newer Octavo, or go back to the copy "
                f"that it left ({FILE}.v{newest}; see docs/batch.md)"
            )
        if 0 < version < newest and self.engine.dialect.name == "sqlite":
            self._keep(version)
        for number in range(version, newest):
            with self.begin() as connection:
                migrations[number](connection)
                connection.execute(sa.delete(schema))
                connection.execute(sa.insert(schema).values(version=number + 1))

    def _version(self, connection: sa.Connection) -> int:
        if not sa.inspect(connection).has_table(schema.name):
            return 0
        return int(connection.execute(sa.select(schema.c.version)).scalar() or 0)

    def _keep(self, version: int) -> None:
        copy = self._file.with_name(f"{FILE}.v{version}")
        copy.unlink(missing_ok=True)
        raw = self.engine.raw_connection()
        try:
            raw.cursor().execute("VACUUM INTO ?", (str(copy),))
        finally:
            raw.close()


def _engine(url: str | None, file: Path) -> sa.Engine:
    if url is None:
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(file)), connect_args={"timeout": 30}
        )
        sa.event.listen(engine, "connect", _sqlite_connected)
        sa.event.listen(engine, "begin", _sqlite_begins)
        return engine
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise DatabaseError(
            "--batch-database-url is no URL; it looks like postgresql://user:password@host/name"
        ) from None
    if parsed.get_backend_name() != "postgresql":
        raise DatabaseError(
            f"--batch-database-url begins with {parsed.drivername!r}; only postgresql:// is "
            "supported there (without the option SQLite is used)"
        )
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        return sa.create_engine(parsed, pool_pre_ping=True)
    except ImportError:
        raise DatabaseError("PostgreSQL needs psycopg: pip install 'octavo[postgres]'") from None


def _sqlite_connected(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions are begun by `_sqlite_begins`
    for setting in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {setting}")


def _sqlite_begins(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
