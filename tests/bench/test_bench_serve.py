"""`octavo bench serve` as users type it: tables, files of results, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.load.client import Outcome
from octavo.bench.load.figures import summarize
from octavo.bench.load.runner import Run
from octavo.bench.load.session import Session
from octavo.cli import main
from octavo.cli.bench_serve import show
from octavo.cli.console import table_console
from octavo.config import table
from support.live_server import until
from support.scripted_api import HEAD, LAST, Act, ScriptedApi, good, status

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in table():
        monkeypatch.delenv(row.env, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")


def octavo(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["bench", "serve", *words])
    return int(end.value.code or 0)


def test_tables_for_people_and_json_for_programs(capsys: Capture, tmp_path: Path) -> None:
    saved = tmp_path / "results.json"
    words = ["--requests", "6", "--output-tokens", "3", "--repeats", "2", "--output", str(saved)]
    with ScriptedApi() as server:
        assert octavo("--url", server.url, *words) == 0
        people = capsys.readouterr()
        assert octavo("--url", server.url, *words, "--json", "--seed", "5") == 0
        programs = capsys.readouterr()
    for part in (
        "throughput",
        "output (tokens/s)",
        "latency (ms)",
        "TTFT",
        "TPOT",
        "ITL, by chunk",
    ):
        assert part in people.out and part in programs.err
    results = json.loads(programs.out)
    assert results["settings"]["seed"] == 5 and not results["interrupted"]
    assert len(results["runs"]) == 2 and "outcomes" not in results["runs"][0]
    assert results["medians"]["random"]["server"]["output_tokens"] == 18
    kept = json.loads(saved.read_text())
    assert kept["settings"]["seed"] == 5 and len(kept["runs"][1]["outcomes"]) == 6
    assert {body["model"] for body in server.bodies} == {"scripted"}


def test_g03_failures_are_printed_and_decide_the_exit_code(capsys: Capture) -> None:
    def answer(number: int, body: dict[str, Any]) -> list[bytes]:
        return [status(500, "[boom]")] if number % 10 == 5 else good(number, body)

    with ScriptedApi(answer) as server:
        words = ["--url", server.url, "--requests", "40", "--output-tokens", "2"]
        assert octavo(*words) == 1
        strict = capsys.readouterr()
        assert octavo(*words, "--max-failures", "0.2") == 0
    assert "status 500: [boom]" in strict.out
    assert "error: 4 requests failed: 10.0% of all, above --max-failures 0.01" in strict.err


def test_two_servers(capsys: Capture) -> None:
    with ScriptedApi() as one, ScriptedApi() as other:
        words = ["--url", one.url, "--against", other.url, "--requests", "4", "--seed", "3"]
        assert octavo(*words, "--output-tokens", "4") == 0
    assert "server over against" in capsys.readouterr().out
    prompts = [sorted(body["prompt"].split()[-5:] for body in s.bodies) for s in (one, other)]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workload", "a.json", "--trace", "b.csv"], "give one"),
        (["--only", "x"], "give --workload too"),
        (["--trace", "b.csv", "--rate", "3"], "give --scale instead of --rate"),
        (["--against", "ftp://x"], "ftp://x is not an http or https address"),
        (["--requests", "0"], "Invalid value for '--requests'"),
    ],
)
def test_errors_of_use(capsys: Capture, words: list[str], told: str) -> None:
    assert octavo("--url", "127.0.0.1:9", *words) == 2
    assert told in capsys.readouterr().err


def test_nobody_there(capsys: Capture) -> None:
    assert octavo("--url", "127.0.0.1:9") == 1
    told = capsys.readouterr().err
    assert "server does not answer: cannot connect" in told and "octavo serve" in told


def test_g03_ctrl_c_saves_what_there_is(tmp_path: Path) -> None:
    saved = tmp_path / "results.json"

    def answer(number: int, body: dict[str, Any]) -> list[Any]:
        return good(number, body) if number < 5 else [HEAD, Act.STALL, LAST]

    with ScriptedApi(answer) as server:
        words = ["--url", server.url, "--requests", "6", "--concurrency", "2", "--json"]
        words += ["--output", str(saved), "--output-tokens", "2"]
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo", "bench", "serve", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        until(lambda: len(server.bodies) == 7, "all are sent", seconds=60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "partial results" in err and str(saved) in err
    for results in (json.loads(out), json.loads(saved.read_text())):
        assert results["interrupted"]
        assert results["runs"][0]["succeeded"] == 4 and results["runs"][0]["unfinished"] == 2


def test_the_tables(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Against a snapshot; UPDATE_SNAPSHOTS=1 writes it anew."""
    first = Outcome(0.0, 0.0, [1.0, 1.5, 2.0], 2.0, 2.0, 128, 3)
    second = Outcome(0.0, 0.5, [1.5, 2.5], 2.5, 2.5, 128, 4)
    failed = Outcome(0.0, 0.5, [], 0.0, 0.6, failure="status 500: boom")
    session = Session()
    for server, outcomes in (("server", [first, second]), ("against", [second, failed])):
        figures = summarize(Run("single", outcomes, seconds=2.5, client_cpu=0.012))
        session.runs.append(figures | {"server": server, "repeat": 0, "warnings": []})
    show(session, table_console().print)
    shown = re.sub(r" +$", "", capsys.readouterr().out, flags=re.M)
    path = Path(__file__).parent / "snapshots/bench_serve.txt"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert shown == path.read_text()
