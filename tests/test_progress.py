"""Progress of bytes: a bar on terminals, lines elsewhere, and where the bytes come from."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from octavo.engine.build import build_engine_core
from octavo.engine.client import AsyncEngine
from octavo.model.info import ModelInfo
from octavo.model.metered import Metered
from octavo.model.registry import open_model
from octavo.model.runner import load
from octavo.progress import EVERY, ByteProgress
from support.load_config import load_config
from support.tiny_models import write_tiny_random

MIB = 1024**2


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_every_few_seconds_where_there_is_no_terminal() -> None:
    said: list[str] = []
    clock = Clock()
    console = Console(file=io.StringIO())
    progress = ByteProgress(console, said.append, clock=clock)
    for second in range(8):
        clock.now = 100.0 + second
        progress.update("Packing weights", second * 10 * MIB, 100 * MIB)
    assert said == [
        "Packing weights: 30 MiB of 100 MiB (30%), 10 MiB/s",
        "Packing weights: 60 MiB of 100 MiB (60%), 10 MiB/s",
    ]
    clock.now += 10 * EVERY
    progress.update("other", 5, None)
    assert len(said) == 2, "what begins says nothing yet"
    clock.now += EVERY
    progress.update("other", 3 * 1024**3 + 5, None)
    assert said[-1] == "other: 3.0 GiB, 1.0 GiB/s"
    progress.close()


def test_a_bar_on_a_terminal_and_nothing_of_it_afterwards() -> None:
    said: list[str] = []
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    clock = Clock()
    with ByteProgress(console, said.append, clock=clock) as progress:
        progress.update("Packing weights", 0, 100 * MIB)
        assert progress._bar is None and screen.getvalue() == "", "a small model needs none"
        clock.now += 2
        progress.update("Packing weights", 50 * MIB, 100 * MIB)
        assert progress._bar is not None
        progress._bar.refresh()
        shown = screen.getvalue()
        assert "Packing weights" in shown and "50.0/100.0 MiB" in shown and "25 MiB/s" in shown
    assert progress._bar is None and said == []


def test_nothing_is_shown_where_nothing_is_wanted() -> None:
    screen = io.StringIO()
    clock = Clock()
    console = Console(file=screen, force_terminal=True)
    with ByteProgress(console, bar=False, clock=clock) as progress:
        progress.update("x", 0, 2)
        clock.now += 60
        progress.update("x", 1, 2)
    assert screen.getvalue() == ""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_random(tmp_path / "tiny", layers=3)


def packed(tiny: Path) -> int:
    """Bytes of the matrices, which alone are told of one by one."""
    source, info = open_model(tiny).source, open_model(tiny).info
    return sum(source.get(n).data.nbytes for n in _matrices(info))


def _matrices(info: ModelInfo) -> list[str]:
    parts = ("q", "k", "v", "o", "gate", "up", "down")
    return ["embed", "head", *(f"layers.{i}.{p}" for i in range(info.layers) for p in parts)]


def test_every_matrix_counts_once_by_its_bytes_in_the_file(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.model.metered._INTERVAL", 0.0)
    seen: list[tuple[int, int]] = []
    load(load_config(tiny, threads=2), progress=lambda done, total: seen.append((done, total)))
    size = (tiny / "model.safetensors").stat().st_size
    assert seen[0] == (0, size) and seen[-1] == (size, size)
    assert {total for _, total in seen} == {size}
    done = [count for count, _ in seen]
    assert done == sorted(done)
    assert done[-2] == packed(tiny), "before the vectors, headers and the rest"
    assert len(done) == len(_matrices(open_model(tiny).info)) + 2


def test_reports_come_no_faster_than_they_are_of_use(tiny: Path) -> None:
    seen: list[int] = []
    load(load_config(tiny), progress=lambda done, total: seen.append(done))
    assert len(seen) <= 4


def test_an_exception_of_a_report_ends_the_loading(tiny: Path) -> None:
    def fail(done: int, total: int) -> None:
        if done:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        load(load_config(tiny), progress=fail)


def test_a_source_of_unknown_size_does_not_overflow(tiny: Path) -> None:
    opened = open_model(tiny)
    seen: list[int] = []
    metered = Metered(opened.source, 10, lambda done, total: seen.append(done))
    metered.get("embed")
    metered.done("embed")
    metered.done("embed")
    metered.finish()
    assert max(seen) == 10 and metered.has("embed")
    metered.close()


def test_loaders_that_cannot_tell_are_not_asked() -> None:
    """Loaders of tests take the configuration alone."""
    from octavo.engine.messages import EngineConfig

    config = EngineConfig(
        model="",
        served_name="m",
        max_model_len=64,
        num_blocks=16,
        executor="support.fault_executors:load_hash",
    )
    seen: list[Any] = []
    build_engine_core(config, progress=lambda *news: seen.append(news))
    assert seen == []


async def test_the_engine_process_tells_how_far_it_is(tiny: Path) -> None:
    seen: list[tuple[int, int]] = []
    reasons: list[str] = []

    def loading(done: int, total: int) -> None:
        seen.append((done, total))
        reasons.append(engine.health().reason)

    engine = AsyncEngine(load_config(tiny, max_model_len=64), loading=loading)
    try:
        await engine.start()
        size = (tiny / "model.safetensors").stat().st_size
        assert seen[0] == (0, size) and seen[-1] == (size, size)
        assert reasons[0] == "the model is being loaded (0% of its weights)"
        assert reasons[-1] == "the model is being loaded (100% of its weights)"
        assert engine.health().reason == "ready"
    finally:
        await engine.close()
