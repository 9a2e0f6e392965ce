"""kill -9 in the middle of a batch: the output has each row once, as in an undisturbed run."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.batchq.objects import LIVE
from support.live_server import until
from support.postgres import Postgres, missing
from support.tiny_models import write_tiny_random

ROOT = Path(__file__).resolve().parents[2]
ROWS = 200
TEXT = "/v1/completions"


class Server:
    """`octavo serve` with a batch directory, as a process that can be killed."""

    def __init__(self, model: Path, folder: Path, log: Path, *flags: str) -> None:
        self.log = log
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
        command = [
            sys.executable, "-m", "octavo", "serve", str(model), "--port", "0", "--threads", "1",
            "--kv-tokens", "8192", "--max-model-len", "256", "--served-model-name", "tiny",
            "--batch-dir", str(folder), "--batch-max-in-flight", "8", *flags,
        ]  # fmt: skip
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                command, stdout=sink, stderr=sink, env=environment, cwd=folder.parent
            )

    @property
    def api(self) -> openai.OpenAI:
        found: list[str] = []

        def up() -> bool:
            found[:] = re.findall(r"url +(http://127\.0\.0\.1:\d+)", self.log.read_text())
            return bool(found) or self.process.poll() is not None

        until(up, "the server's URL", 60)
        assert self.process.poll() is None, self.log.read_text()
        return openai.OpenAI(base_url=f"{found[0]}/v1", api_key="none", max_retries=5)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def kill_engine(self) -> None:
        tasks = Path(f"/proc/{self.process.pid}/task")
        for task in list(tasks.iterdir()):
            for child in (task / "children").read_text().split():
                os.kill(int(child), signal.SIGKILL)


Begin = Callable[..., Server]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    model = write_tiny_random(tmp_path / "model", peaked=True)
    with ExitStack() as stack:
        count = 0

        def started(folder: str, *flags: str) -> Server:
            nonlocal count
            count += 1
            server = Server(model, tmp_path / folder, tmp_path / f"log{count}", *flags)
            stack.callback(server.kill)
            return server

        yield started


def lines() -> bytes:
    """Greedy rows, and sampled ones with a seed of their own; some are wrong."""
    made = []
    for n in range(ROWS):
        body: dict[str, Any] = {"prompt": f"row {n}", "max_tokens": 4 + n % 24, "ignore_eos": True}
        body |= {"temperature": 1.0, "seed": n} if n % 2 else {"temperature": 0}
        if n % 50 == 7:
            body["top_p"] = 5
        made.append({"custom_id": f"{n}", "method": "POST", "url": TEXT, "body": body})
    return "\n".join(map(json.dumps, made)).encode()


def create(api: openai.OpenAI) -> str:
    file = api.files.create(file=("in.jsonl", io.BytesIO(lines())), purpose="batch")
    return api.batches.create(input_file_id=file.id, endpoint=TEXT, completion_window="24h").id


def done(api: openai.OpenAI, batch_id: str) -> int:
    counts = api.batches.retrieve(batch_id).request_counts
    assert counts is not None
    return counts.completed + counts.failed


def outcome(api: openai.OpenAI, batch_id: str) -> tuple[list[Any], list[Any]]:
    """What the rows said, without what differs by nature: ids and times."""
    until(lambda: api.batches.retrieve(batch_id).status not in LIVE, "the end", 120)
    batch = api.batches.retrieve(batch_id)
    assert batch.status == "completed" and batch.request_counts is not None
    assert batch.request_counts.total == ROWS
    good, bad = [], []
    assert batch.output_file_id and batch.error_file_id
    for line in api.files.content(batch.output_file_id).text.splitlines():
        row = json.loads(line)
        body = row["response"]["body"]
        tokens = body["usage"]["completion_tokens"]
        good.append((row["custom_id"], body["choices"], tokens))
    for line in api.files.content(batch.error_file_id).text.splitlines():
        row = json.loads(line)
        bad.append((row["custom_id"], row["response"]["body"]))
    assert len(good) == batch.request_counts.completed
    assert len(bad) == batch.request_counts.failed
    numbers = [int(custom_id) for custom_id, *_ in good]
    assert numbers == sorted(numbers)
    assert sorted([*numbers, *(int(one) for one, _ in bad)]) == list(range(ROWS))
    return good, bad


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Flags for a database."""
    if request.param == "sqlite":
        yield []
        return
    if reason := missing():
        pytest.skip(reason)
    with Postgres() as postgres:
        yield ["--batch-database-url", postgres.database()]


@pytest.mark.timeout(600)
def test_killed_at_random_moments(begin: Begin, database: list[str]) -> None:
    """The server three times, its engine twice, wherever the batch is then."""
    chance = random.Random(os.getpid())
    undisturbed = begin("calm")
    with undisturbed.api as api:
        expected = outcome(api, create(api))
    undisturbed.kill()

    server = begin("storm", *database)
    with server.api as api:
        batch_id = create(api)
    at, amid = 0, 0
    for blow in ("server", "engine", "server", "engine", "server"):
        at = chance.randint(at + 1, min(at + 45, ROWS - 10))
        with server.api as api:
            until(lambda: done(api, batch_id) >= at, f"{at} rows", 60)  # noqa: B023
            amid += api.batches.retrieve(batch_id).status == "in_progress"
        if blow == "engine":
            server.kill_engine()
        else:
            server.kill()
            server = begin("storm", *database)
    with server.api as api:
        assert outcome(api, batch_id) == expected
    assert amid, "every blow came after the end"
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0, server.log.read_text()


def test_a_drain_leaves_the_rest_for_the_next_start(begin: Begin) -> None:
    server = begin("drained", "--shutdown-timeout", "20")
    with server.api as api:
        batch_id = create(api)
        until(lambda: done(api, batch_id) >= 5, "some rows", 60)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0, server.log.read_text()
    assert "Traceback" not in server.log.read_text()
    server = begin("drained")
    with server.api as api:
        outcome(api, batch_id)


def test_two_servers_on_one_directory(begin: Begin) -> None:
    first = begin("shared")
    with first.api:
        second = begin("shared")
        assert second.process.wait(60) == 2
        assert "in use by another process" in second.log.read_text()
        assert "Traceback" not in second.log.read_text()
