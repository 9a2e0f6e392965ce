"""`octavo batch run`: a file in, a file out, and going on after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.batchq.store import Store
from octavo.cli.errors import explain
from octavo.config import resolve
from octavo.server.batching import BatchSetupError, open_store
from support.live_server import until
from support.tiny_models import write_tiny_random

ROOT = Path(__file__).resolve().parents[2]
ROWS = 60


def lines(count: int = ROWS) -> str:
    made = []
    for n in range(count):
        body: dict[str, Any] = {"prompt": f"row {n}", "max_tokens": 5 + n % 20, "seed": n}
        body |= {"ignore_eos": True}
        if n % 20 == 3:
            body["top_p"] = 5
        row = {"custom_id": f"{n}", "method": "POST", "url": "/v1/completions", "body": body}
        made.append(json.dumps(row))
    return "\n".join(made)


class Command:
    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.log = folder / "log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
        command = [
            sys.executable, "-m", "octavo", "batch", "run", *words, "--threads", "1",
            "--kv-tokens", "8192", "--max-model-len", "256", "--batch-max-in-flight", "4",
        ]  # fmt: skip
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                command, stdout=sink, stderr=sink, env=environment, cwd=folder
            )

    def end(self) -> tuple[int, str]:
        try:
            return self.process.wait(90), self.log.read_text()
        finally:
            self.process.kill()
            self.process.wait()

    def done(self, name: str) -> int:
        """Rows with a result in the folder of an output."""
        if self.process.poll() is not None:
            raise AssertionError(self.log.read_text())
        if not (self.folder / f"{name}.partial" / "batches.db").exists():
            return 0
        store = Store(self.folder / f"{name}.partial")
        try:
            found, _ = store.page("", None, 1)
            return found[0].request_counts.completed if found else 0
        finally:
            store.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_tiny_random(tmp_path / "model", peaked=True)
    (tmp_path / "in.jsonl").write_text(lines())
    return tmp_path


def answers(path: Path) -> list[tuple[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["custom_id"], row["response"]["body"].get("choices")) for row in rows]


def test_interrupted_and_gone_on_with(place: Path) -> None:
    code, log = Command(place, "in.jsonl", "model").end()
    assert code == 0, log
    expected = answers(place / "in.out.jsonl")
    assert [name for name, _ in expected] == [f"{n}" for n in range(ROWS) if n % 20 != 3]
    assert len(answers(place / "in.out.errors.jsonl")) == 3 and "3 rows failed" in log

    for blow in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        command = Command(place, "in.jsonl", "--output", "again.jsonl", "model")
        begun = command.done("again.jsonl")
        until(lambda: command.done("again.jsonl") > begun + 2, "rows", 60)  # noqa: B023
        command.process.send_signal(blow)
        code, log = command.end()
        assert code != 0 and "Traceback" not in log, log
        assert not (place / "again.jsonl").exists()
    code, log = Command(place, "in.jsonl", "--output", "again.jsonl", "model").end()
    assert code == 0 and "rows were done before" in log, log
    assert answers(place / "again.jsonl") == expected
    assert not list(place.glob("*.partial"))


def test_another_input_in_the_same_place(place: Path) -> None:
    command = Command(place, "in.jsonl", "model")
    until(lambda: command.done("in.out.jsonl") > 2, "rows", 60)
    command.process.kill()
    command.end()
    blocked = Store(place / "in.out.jsonl.partial")
    blocked.open_for_running()
    code, log = Command(place, "in.jsonl", "model").end()
    assert code == 2 and "in use by another process" in log and "Traceback" not in log
    blocked.close()
    (place / "in.jsonl").write_text(lines(5))
    code, log = Command(place, "in.jsonl", "model").end()
    assert code == 2 and "begun with another input" in log and "Traceback" not in log


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "python_multipart", None)
    with pytest.raises(BatchSetupError, match=r"pip install 'octavo\[batch\]'") as error:
        open_store(resolve({"batch_dir": str(tmp_path / "batches")}))
    told = explain(error.value)
    assert told is not None and told.code == 2
    with pytest.raises(BatchSetupError, match="needs --batch-dir"):
        open_store(resolve({"batch_database_url": "postgresql://x/y"}))


def test_a_faulty_file_is_refused_before_the_model_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(lines(2) + "\n{\n" + lines(1))
    code, log = Command(tmp_path, "in.jsonl", "nothing").end()
    assert code == 2 and "line 3: the line is not a JSON object" in log
    assert "line 4: custom_id '0' is that of line 1 too" in log
    assert not list(tmp_path.glob("*.partial"))
    code, log = Command(tmp_path, "missing.jsonl", "nothing").end()
    assert code == 1 and "missing.jsonl" in log and "Traceback" not in log
