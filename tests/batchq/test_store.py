"""Files, batches and rows in the store: states, ownership, quotas, expiry, results."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchq.conftest import START, Clock, Opened
from octavo.batchq import database
from octavo.batchq.database import FILE, MIGRATIONS, Database, DatabaseError
from octavo.batchq.objects import (
    WINDOW_SECONDS,
    Batch,
    CreateBatch,
    ExpiresAfter,
    Limits,
    LineError,
    Refusal,
    Refused,
    Status,
)
from octavo.batchq.store import Result, Store
from octavo.batchq.validate import Row, read_rows, request_body
from support.postgres import Postgres

CHAT = "/v1/chat/completions"


def line(custom_id: str, **body: object) -> str:
    row = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    return json.dumps(row)


def put(store: Store, *lines: str, owner: str = "ann") -> str:
    content = io.BytesIO("\n".join(lines).encode())
    return store.files.add(owner, content, "in.jsonl", "batch").id


def created(store: Store, *lines: str, owner: str = "ann") -> Batch:
    return store.create(owner, CreateBatch(put(store, *lines, owner=owner), CHAT, "24h"))


def begun(store: Store, count: int) -> Batch:
    batch = created(store, *(line(f"row-{n}", n=n) for n in range(count)))
    found, errors = read_rows(store.input_path(batch.id), CHAT, store.limits)
    assert not errors
    store.begin(batch.id, found)
    return store.get("ann", batch.id)


def record(
    store: Store, batch_id: str, row: Row, status: int, request_id: str, body: bytes
) -> bool:
    return store.record([Result(batch_id, row, status, request_id, body)])[0]


def read(store: Store, file_id: str | None) -> list[dict[str, object]]:
    assert file_id is not None
    text = store.files.content("ann", file_id).read_text()
    return [json.loads(one) for one in text.splitlines()]


def test_a_batch_from_begin_to_end(opened: Opened, clock: Clock) -> None:
    store = opened()
    batch = begun(store, 5)
    assert batch.status == Status.IN_PROGRESS and batch.request_counts.total == 5
    assert batch.expires_at == START + WINDOW_SECONDS
    pending = store.pending(batch.id)
    for row in reversed(pending):
        status = 400 if row.number == 3 else 200
        assert record(store, batch.id, row, status, f"r{row.number}", b'{"x":1}')
    assert not store.pending(batch.id) and store.pending_count() == 0
    clock.time += 7
    store.finish(batch.id, Status.COMPLETED)
    over = store.get("ann", batch.id)
    assert (over.status, over.completed_at) == (Status.COMPLETED, START + 7)
    assert (over.request_counts.completed, over.request_counts.failed) == (4, 1)
    output = read(store, over.output_file_id)
    assert [row["custom_id"] for row in output] == ["row-0", "row-1", "row-2", "row-4"]
    assert output[0]["response"] == {"status_code": 200, "request_id": "r0", "body": {"x": 1}}
    assert [row["custom_id"] for row in read(store, over.error_file_id)] == ["row-3"]


def test_a_row_has_one_result(opened: Opened) -> None:
    """The second is dropped, from a store opened anew too, and nothing is counted twice."""
    store = opened()
    batch = begun(store, 2)
    row = store.pending(batch.id)[0]
    assert record(store, batch.id, row, 200, "first", b"1")
    assert not record(store, batch.id, row, 200, "second", b"2")
    again = opened()
    assert not record(again, batch.id, row, 500, "third", b"3")
    assert [left.number for left in again.pending(batch.id)] == [1]
    record(again, batch.id, again.pending(batch.id)[0], 200, "other", b"4")
    again.finish(batch.id, Status.COMPLETED)
    again.finish(batch.id, Status.COMPLETED)
    over = again.get("ann", batch.id)
    assert over.request_counts.completed == 2 and over.error_file_id is None
    bodies = [row["response"]["body"] for row in read(again, over.output_file_id)]  # type: ignore[index]
    assert bodies == [1, 4]
    files, _ = again.files.page("ann", "batch_output", None, 10, True)
    assert len(files) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status.CANCELLED, "batch_cancelled"), (Status.EXPIRED, "batch_expired")],
)
def test_rows_that_did_not_run_are_told_of(opened: Opened, status: Status, code: str) -> None:
    store = opened()
    batch = begun(store, 3)
    record(store, batch.id, store.pending(batch.id)[1], 200, "r", b"{}")
    store.finish(batch.id, status)
    over = store.get("ann", batch.id)
    assert over.status == status
    assert [row["custom_id"] for row in read(store, over.output_file_id)] == ["row-1"]
    unrun = read(store, over.error_file_id)
    assert [row["custom_id"] for row in unrun] == ["row-0", "row-2"]
    assert all(row["response"] is None and row["error"]["code"] == code for row in unrun)  # type: ignore[index]


def test_owners_see_their_own(opened: Opened) -> None:
    store = opened()
    batch = created(store, line("a"))
    for ask in (
        lambda: store.get("bob", batch.id),
        lambda: store.cancel("bob", batch.id),
        lambda: store.files.get("bob", batch.input_file_id),
        lambda: store.files.content("bob", batch.input_file_id),
        lambda: store.files.delete("bob", batch.input_file_id),
        lambda: store.create("bob", CreateBatch(batch.input_file_id, CHAT, "24h")),
    ):
        with pytest.raises(Refusal) as error:
            ask()
        assert error.value.kind is Refused.NOT_FOUND
    assert store.page("bob", None, 10) == ([], False)
    assert store.files.page("bob", None, None, 10, True) == ([], False)


def test_pages(opened: Opened) -> None:
    store = opened()
    made = [created(store, line("a")).id for _ in range(5)]
    first, more = store.page("ann", None, 2)
    assert [batch.id for batch in first] == [made[4], made[3]] and more
    rest, more = store.page("ann", made[3], 3)
    assert [batch.id for batch in rest] == made[2::-1] and not more
    names = [file.id for file in store.files.page("ann", "batch", None, 9, False)[0]]
    assert names == sorted(names) and len(names) == 5


def test_quotas(opened: Opened) -> None:
    store = opened(Limits(max_rows=2, max_file_bytes=200, max_live=1))
    with pytest.raises(Refusal, match="more than 200 bytes"):
        put(store, "x" * 201)
    batch = created(store, line("a"))
    with pytest.raises(Refusal, match="1 batches of this key") as error:
        created(store, line("b"))
    assert error.value.kind is Refused.QUOTA
    assert created(store, line("b"), owner="bob").status == Status.VALIDATING
    store.fail(batch.id, [LineError("x", "no")])
    failed = store.get("ann", batch.id)
    assert failed.errors is not None and failed.errors.data[0].message == "no"
    assert created(store, line("c")).status == Status.VALIDATING


def test_files_expire_but_not_under_a_live_batch(opened: Opened, clock: Clock) -> None:
    store = opened()
    keep = ExpiresAfter("created_at", 3600)
    file = store.files.add("ann", io.BytesIO(line("a").encode()), "f", "batch", keep)
    other = store.files.add("ann", io.BytesIO(b"x"), "g", "batch", keep)
    batch = store.create("ann", CreateBatch(file.id, CHAT, "24h"))
    with pytest.raises(Refusal, match=f"input of {batch.id}"):
        store.files.delete("ann", file.id)
    clock.time += 3600
    with pytest.raises(Refusal):
        store.files.get("ann", other.id)
    assert store.files.expire() == 1
    assert store.input_path(batch.id).exists()
    store.fail(batch.id, [])
    path = store.input_path(batch.id)
    assert store.files.expire() == 1 and not path.exists()


def test_the_sweep_takes_contents_without_a_record(opened: Opened, tmp_path: Path) -> None:
    store = opened()
    kept = put(store, line("a"))
    folder = tmp_path / "batches" / "files"
    (folder / "file-unknown").write_bytes(b"x")
    (folder / "file-half.partial").write_bytes(b"x")
    store.open_for_running()
    assert [path.name for path in folder.iterdir()] == [kept]


def test_one_runner_at_a_time(opened: Opened) -> None:
    first = opened()
    first.open_for_running()
    with pytest.raises(DatabaseError, match="in use by another process"):
        opened().open_for_running()
    first.close()
    opened().open_for_running()


def test_one_runner_on_a_database(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From other directories too."""
    monkeypatch.setattr(database, "_LOCK_PATIENCE", 1)
    url = postgres.database()
    first, second = Store(tmp_path / "a", url), Store(tmp_path / "b", url)
    first.open_for_running()
    with pytest.raises(DatabaseError, match="another server runs batches"):
        second.open_for_running()
    second.close()
    first.close()
    third = Store(tmp_path / "b", url)
    third.open_for_running()
    third.close()


def test_seeds_belong_to_the_row() -> None:
    def made(batch: str, number: int, **body: object) -> dict[str, object]:
        return dict(json.loads(request_body(batch, number, line("a", **body).encode())))

    assert made("b", 1) == made("b", 1)
    assert len({made("b", 1)["seed"], made("b", 2)["seed"], made("c", 1)["seed"]}) == 3  # type: ignore[arg-type]
    assert made("b", 1, seed=5)["seed"] == 5
    assert made("b", 1, seed=None, service_tier="priority")["service_tier"] == "batch"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ("{", "invalid_json_line"),
        ("[]", "invalid_request_line"),
        ('{"custom_id": "b"}', "invalid_request_line"),
        (line(""), "invalid_custom_id"),
        (line("a\0b"), "invalid_custom_id"),
        (line("good"), "duplicate_custom_id"),
        (line("b").replace("POST", "GET"), "invalid_method"),
        (line("b").replace("chat/", ""), "mismatched_endpoint"),
        (line("b", stream=True), "invalid_stream"),
        (line("b", text="x" * 2000), "line_too_long"),
    ],
)
def test_what_is_wrong_with_a_line(tmp_path: Path, bad: str, code: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(f"{line('good')}\n\n{bad}\n{line('after')}\n")
    rows, errors = read_rows(file, CHAT, Limits(max_row_bytes=1000))
    assert not rows
    assert [(error.code, error.line) for error in errors] == [(code, 3)]


def test_rows_are_found_where_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(f"{line('ä')}\r\n\n{line('b')}".encode())
    rows, errors = read_rows(file, CHAT, Limits())
    assert not errors
    data = file.read_bytes()
    parts = [json.loads(data[row.start : row.start + row.size]) for row in rows]
    assert [part["custom_id"] for part in parts] == ["ä", "b"]
    assert [error.code for error in read_rows(file, CHAT, Limits(max_rows=1))[1]] == [
        "too_many_rows"
    ]
    file.write_bytes(b"\n\n")
    assert [error.code for error in read_rows(file, CHAT, Limits())[1]] == ["empty_file"]


def test_schema_versions(tmp_path: Path) -> None:
    """An older schema is brought up and kept as a copy; a newer one is refused."""

    def second(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE octavo_files ADD COLUMN note TEXT"))

    Database(tmp_path).close()
    newer = Database(tmp_path, migrations=[*MIGRATIONS, second])
    with newer.begin() as connection:
        connection.execute(sa.text("SELECT note FROM octavo_files"))
    newer.close()
    with pytest.raises(DatabaseError, match=r"version 2, made by a newer Octavo.*up to 1"):
        Database(tmp_path)
    (tmp_path / f"{FILE}.v1").replace(tmp_path / FILE)
    for name in ("-wal", "-shm"):
        (tmp_path / f"{FILE}{name}").unlink(missing_ok=True)
    Database(tmp_path).close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://x/y", "only postgresql://"),
        ("nothing", "is no URL"),
        ("postgresql://127.0.0.1:1/x?connect_timeout=2", "cannot use the database"),
    ],
)
def test_databases_that_cannot_be_used(tmp_path: Path, url: str, told: str) -> None:
    with pytest.raises(DatabaseError, match=told):
        Database(tmp_path, url)
