"""Running the command line in this process and as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from octavo.cli import main

SNAPSHOTS = Path(__file__).parent / "snapshots"


@dataclass
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def octavo(capsys: pytest.CaptureFixture[str]) -> Run:
    """octavo("check", path): runs the command in this process."""

    def run(*words: str) -> Result:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        printed = capsys.readouterr()
        return Result(int(end.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def process() -> Run:
    """process("serve", ..., env={...}): runs the command as a process of its own."""

    def run(*words: str, env: dict[str, str] | None = None) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "octavo", *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            env={**os.environ, **(env or {})},
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No options from whoever runs the tests; no colours."""
    for name in list(os.environ):
        if name.startswith("OCTAVO_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


Snapshot = Callable[[str, str], None]


@pytest.fixture
def snapshot() -> Snapshot:
    """snapshot(name, text): equal to the file, which UPDATE_SNAPSHOTS=1 writes anew."""

    def compare(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        if os.environ.get("UPDATE_SNAPSHOTS") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"no snapshot {name}: set UPDATE_SNAPSHOTS=1"
        assert text == path.read_text()

    return compare
