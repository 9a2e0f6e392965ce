"""Stores on SQLite, and on PostgreSQL where it is installed, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from octavo.batchq.objects import Limits
from octavo.batchq.store import Store
from support.postgres import Postgres, missing

START = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    if reason := missing():
        pytest.skip(reason)
    with Postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str | None:
    """A database for one test."""
    if request.param == "sqlite":
        return None
    return str(request.getfixturevalue("postgres").database())


Opened = Callable[..., Store]


@pytest.fixture
def opened(tmp_path: Path, url: str | None, clock: Clock) -> Iterator[Opened]:
    """`opened(limits)`: the store of this test, opened anew each time."""
    with ExitStack() as stack:

        def begin(limits: Limits | None = None) -> Store:
            store = Store(tmp_path / "batches", url, limits, clock)
            stack.callback(store.close)
            return store

        yield begin
