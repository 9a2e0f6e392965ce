"""Engines for the tests: real processes, tiny or fake models."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.client import AsyncEngine
from octavo.engine.messages import EngineConfig

TESTS = Path(__file__).parent.parent

Starter = Callable[..., Awaitable[AsyncEngine]]


@pytest.fixture
async def start_engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Starter]:
    """`await start_engine(config, **options)`: a started AsyncEngine, closed after the test."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    engines: list[AsyncEngine] = []

    async def start(config: EngineConfig, **options: Any) -> AsyncEngine:
        engine = AsyncEngine(config, **options)
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.close()
