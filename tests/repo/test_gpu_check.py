"""The check for machines with a GPU: what it says and returns on machines of each kind."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from support.scripts import load_script

gpu_check = load_script("gpu_check")


@pytest.fixture
def has_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "gpu", lambda: "Some GPU (compute capability 9.0)")


def test_without_torch_or_a_gpu_it_says_so_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: None)
    assert gpu_check.main() == 0
    assert "torch is not installed: nothing to check" in capsys.readouterr().out
    monkeypatch.setattr(gpu_check, "versions", lambda: {"torch": "2.13.0"})
    assert gpu_check.main() == 0
    said = capsys.readouterr().out
    assert "torch 2.13.0" in said and "torch finds no CUDA GPU" in said


def test_with_a_gpu_it_returns_what_the_tests_return(
    monkeypatch: pytest.MonkeyPatch, has_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        ran.update(options, command=command)
        return SimpleNamespace(returncode=3)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(gpu_check, "versions", lambda: dict.fromkeys(gpu_check.NEEDED, "1.0"))
    monkeypatch.setattr(gpu_check.sys, "argv", ["gpu_check.py", "-x"])
    monkeypatch.setattr(subprocess, "run", run)
    assert gpu_check.main() == 3
    assert ran["command"][1:4] == ["-m", "pytest", "tests/gpu"] and ran["command"][-1] == "-x"
    assert "TRITON_INTERPRET" not in ran["env"]
    assert "Some GPU" in capsys.readouterr().out


def test_with_a_gpu_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, has_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "versions", lambda: {"torch": "2.13.0", "numpy": "2.4"})
    assert gpu_check.main() == 1
    assert "pip install triton msgspec pytest" in capsys.readouterr().err
