"""Files and batches through the real `openai` client, over a scripted engine."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.batchq.objects import LIVE, Limits
from octavo.batchq.store import Store
from octavo.core.request import Refused, ServiceClass
from octavo.server.auth import Key, Role, digest
from octavo.server.serving import Serving
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from support.fake_engine import FakeEngine
from support.live_server import LiveServer, until
from support.tiny_tokenizer import CHAT_TEMPLATE, VOCAB

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
Start = Callable[..., LiveServer]


def line(custom_id: str, url: str = CHAT, **body: Any) -> str:
    if url == CHAT:
        body.setdefault("messages", [{"role": "user", "content": custom_id}])
    else:
        body.setdefault("prompt", custom_id)
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def client(server: LiveServer, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def batch_of(api: openai.OpenAI, *lines: str, url: Any = CHAT, **values: Any) -> str:
    content = io.BytesIO("\n".join(lines).encode())
    file = api.files.create(file=("in.jsonl", content), purpose="batch")
    return api.batches.create(
        input_file_id=file.id, endpoint=url, completion_window="24h", **values
    ).id


def over(api: openai.OpenAI, batch_id: str) -> Any:
    until(lambda: api.batches.retrieve(batch_id).status not in LIVE, "the end", 60)
    return api.batches.retrieve(batch_id)


def results(api: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(one) for one in api.files.content(file_id).text.splitlines()]


@pytest.fixture
def begin(start: Start, tmp_path: Path) -> Callable[..., LiveServer]:
    def with_store(engine: FakeEngine, limits: Limits | None = None, **app: Any) -> LiveServer:
        return start(engine, {"store": Store(tmp_path, None, limits), **app})

    return with_store


def test_a_batch_of_chats(begin: Start, fake: FakeEngine) -> None:
    """Each row once, in order, as the route itself answers; bad rows go to the error file."""
    server = begin(fake)
    with client(server) as api:
        rows = [line(f"row-{n}", max_tokens=1 + n % 3) for n in range(20)]
        rows[7] = line("row-7", temperature=-1)
        rows[9] = line("row-9", model="other")
        batch_id = batch_of(api, *rows, metadata={"made": "here"})
        batch = over(api, batch_id)
        assert batch.status == "completed" and batch.metadata == {"made": "here"}
        assert (batch.request_counts.total, batch.request_counts.completed) == (20, 18)
        assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        output = results(api, batch.output_file_id)
        expected = [f"row-{n}" for n in range(20) if n not in (7, 9)]
        assert [row["custom_id"] for row in output] == expected
        direct = api.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], max_tokens=1
        )
        body = output[0]["response"]["body"]
        assert body["choices"] == json.loads(direct.to_json())["choices"]
        errors = results(api, batch.error_file_id)
        assert [row["custom_id"] for row in errors] == ["row-7", "row-9"]
        assert [row["response"]["status_code"] for row in errors] == [400, 404]
        assert errors[0]["response"]["body"]["error"]["param"] == "temperature"
    assert {one.service_class for one in fake.submissions[:18]} == {ServiceClass.BATCH}
    text = server.get("/metrics").body.decode()
    assert 'octavo:batch_rows_done_total{model_name="tiny"} 18.0' in text
    assert 'octavo:batch_rows_failed_total{model_name="tiny"} 2.0' in text
    assert 'octavo:batch_rows_running{model_name="tiny"} 0.0' in text
    until(lambda: 'batches_live{model_name="tiny"} 0.0' in server.get("/metrics").body.decode(), "")


def test_completions_and_input_errors(begin: Start, fake: FakeEngine) -> None:
    with client(begin(fake)) as api:
        batch = over(api, batch_of(api, line("a", TEXT), line("b", TEXT), url=TEXT))
        texts = [
            row["response"]["body"]["choices"][0]["text"]
            for row in results(api, batch.output_file_id)
        ]
        assert texts == ["Hi", "Hi"] and batch.error_file_id is None
        failed = over(api, batch_of(api, line("a"), "{", line("a")))
        assert failed.status == "failed" and failed.output_file_id is None
        told = [(error.code, error.line) for error in failed.errors.data]
        assert told == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]


def test_files(begin: Start, fake: FakeEngine) -> None:
    with client(begin(fake, Limits(max_file_bytes=1000))) as api:
        made = [
            api.files.create(
                file=(f"{n}.jsonl", b"{}\n"), purpose="batch",
                expires_after={"anchor": "created_at", "seconds": 3600},
            )
            for n in range(3)
        ]  # fmt: skip
        assert made[0].expires_at == made[0].created_at + 3600 and made[0].bytes == 3
        assert api.files.content(made[1].id).read() == b"{}\n"
        assert api.files.retrieve(made[1].id).filename == "1.jsonl"
        page = api.files.list(limit=2, order="asc")
        assert [file.id for file in page.data] == [made[0].id, made[1].id] and page.has_more
        assert [file.id for file in api.files.list(limit=1)] == [f.id for f in reversed(made)]
        assert api.files.delete(made[1].id).deleted
        with pytest.raises(openai.NotFoundError, match="no file"):
            api.files.retrieve(made[1].id)
        with pytest.raises(openai.BadRequestError, match="only 'batch'"):
            api.files.create(file=b"x", purpose="assistants")
        with pytest.raises(openai.BadRequestError, match="seconds is 5"):
            api.files.create(
                file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
            )
        with pytest.raises(openai.BadRequestError, match="more than 1000 bytes"):
            api.files.create(file=b"x" * 1001, purpose="batch")
        with pytest.raises(openai.APIStatusError, match="batch-max-file-size") as error:
            api.files.create(file=b"x" * 200_000, purpose="batch")
        assert error.value.status_code == 413
        with pytest.raises(openai.BadRequestError, match="from 1 to"):
            api.files.list(limit=0)


@pytest.mark.parametrize(
    "path", ["/v1/files/%00", "/v1/batches/%00", "/v1/files?after=%00", "/v1/files?purpose=%00"]
)
def test_no_nul(begin: Start, fake: FakeEngine, path: str) -> None:
    answer = begin(fake).get(path)
    assert answer.status == 400 and "NUL" in answer.error["message"]


def test_bodies_that_are_no_form(begin: Start, fake: FakeEngine) -> None:
    server = begin(fake)
    assert server.post("/v1/files", b"{}").error["param"] == "file"
    kind = "multipart/form-data; boundary=x"
    for body in (b"", b"--x\r\n", b"--x\r\nnothing\r\n\r\n--x--\r\n", b"\0" * 50):
        answer = server.request("POST", "/v1/files", body, {"content-type": kind})
        assert answer.status == 400 and answer.error["message"]


def test_what_a_batch_may_not_be(begin: Start, fake: FakeEngine) -> None:
    with client(begin(fake, Limits(max_live=1))) as api:
        file = api.files.create(file=b"x", purpose="batch").id
        wrong: list[dict[str, Any]] = [
            {"endpoint": "/v1/embeddings"},
            {"completion_window": "1h"},
            {"metadata": {"x": "y" * 513}},
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
        ]
        for values in wrong:
            known = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
            with pytest.raises(openai.BadRequestError) as error:
                api.batches.create(**{**known, **values})  # type: ignore[arg-type]
            assert str(error.value.param).startswith(next(iter(values)))
        with pytest.raises(openai.NotFoundError):
            api.batches.create(input_file_id="file-x", endpoint=CHAT, completion_window="24h")
        fake.gate.clear()
        live = batch_of(api, line("a"))
        with pytest.raises(openai.RateLimitError, match="--batch-max-live"):
            batch_of(api, line("b"))
        until(lambda: len(fake.live) == 1, "the row")
        with pytest.raises(openai.ConflictError, match=live):
            api.files.delete(api.batches.retrieve(live).input_file_id)


def test_cancel(begin: Start, fake: FakeEngine) -> None:
    """Rows with a result keep it; those in flight leave the engine; the others are told of."""
    fake.gate.clear()
    server = begin(fake, batch_rows=2)
    with client(server) as api:
        batch_id = batch_of(api, *(line(f"row-{n}") for n in range(10)))
        until(lambda: len(fake.live) == 2, "two rows in flight")
        assert api.batches.retrieve(batch_id).status == "in_progress"
        assert api.batches.cancel(batch_id).status in ("cancelling", "cancelled")
        batch = over(api, batch_id)
        assert batch.status == "cancelled" and not fake.live
        assert len(results(api, batch.error_file_id)) == 10
        assert len(fake.submissions) == 2, "never more than two in flight"
        with pytest.raises(openai.ConflictError, match="is cancelled"):
            api.batches.cancel(batch_id)
        assert [one.id for one in api.batches.list(limit=5)] == [batch_id]


def test_a_full_queue_is_waited_for(begin: Start, fake: FakeEngine) -> None:
    fake.refuse = Refused("the queue is full", "queue_full", None, 0.01)
    with client(begin(fake)) as api:
        batch_id = batch_of(api, line("a"))
        until(lambda: len(fake.submissions) > 1, "another try", 20)
        fake.refuse = None
        assert over(api, batch_id).request_counts.completed == 1


def test_keys_see_their_own(begin: Start, fake: FakeEngine) -> None:
    keys = tuple(Key(name, Role.CLIENT, digest(f"sk-{name}")) for name in ("ann", "bob"))
    server = begin(fake, keys=keys)
    with client(server, "sk-ann") as ann, client(server, "sk-bob") as bob:
        batch_id = batch_of(ann, line("a"))
        batch = over(ann, batch_id)
        assert fake.submissions[0].tenant == "ann"
        for ask in (
            lambda: bob.batches.retrieve(batch_id),
            lambda: bob.batches.cancel(batch_id),
            lambda: bob.files.content(batch.output_file_id),
            lambda: bob.files.delete(batch.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        assert not list(bob.files.list()) and not list(bob.batches.list())
    assert server.get("/v1/files").status == 401


def test_what_was_not_run_waits_for_the_next_start(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A server that ends in the middle of a batch: the next goes on with the rows left."""

    def server_over(engine: FakeEngine) -> LiveServer:
        template = ChatTemplate(CHAT_TEMPLATE, {"bos_token": "<|bos|>"})
        serving = lambda: Serving(engine, tokenizer, template, ("tiny",), 128, VOCAB)  # noqa: E731
        return LiveServer(serving, store=Store(tmp_path), batch_rows=3)

    fake = FakeEngine()
    fake.gate.clear()
    with server_over(fake) as server, client(server) as api:
        batch_id = batch_of(api, *(line(f"row-{n}") for n in range(9)))
        until(lambda: len(fake.live) == 3, "rows in flight")
    store = Store(tmp_path)
    assert len(store.pending(batch_id)) == 9
    store.close()
    with server_over(FakeEngine()) as server, client(server) as api:
        batch = over(api, batch_id)
        output = results(api, batch.output_file_id)
        assert [row["custom_id"] for row in output] == [f"row-{n}" for n in range(9)]
        assert batch.request_counts.completed == 9


def test_a_server_without(server: LiveServer) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/files/x/content"):
        answer = server.get(path)
        assert answer.status == 404 and "--batch-dir" in answer.error["message"]


def test_a_server_without_pays_nothing() -> None:
    """SQLAlchemy is not imported by the server's modules, only with a store."""
    code = "import sys, octavo.server.lifecycle; print('sqlalchemy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
