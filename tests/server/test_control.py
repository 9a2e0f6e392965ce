"""Drain, pause and resume over HTTP; the watchdog of the event loop (D01, D03)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.engine.client import AsyncEngine
from octavo.engine.health import EngineState
from octavo.engine.messages import EngineStats, Tokens
from octavo.server.auth import load_keys
from octavo.server.lifecycle import Lifecycle
from octavo.server.serving import Serving
from octavo.server.watchdog import API_STUCK, LoopWatchdog
from octavo.text.tokenizer import Tokenizer
from support.engine_tools import engine_config
from support.fake_engine import FakeEngine
from support.live_server import PATIENCE, LiveServer, until
from support.tiny_tokenizer import VOCAB

PROMPT = {"prompt": "x"}


def test_pause_refuses_what_is_new_and_lets_the_rest_end(
    server: LiveServer, fake: FakeEngine
) -> None:
    fake.gate.clear()
    answers: list[Any] = []
    running = threading.Thread(
        target=lambda: answers.append(server.post("/v1/completions", PROMPT))
    )
    running.start()
    until(lambda: bool(fake.live), "it runs")
    paused = server.post("/pause", None)
    assert (paused.status, paused.json()["status"]) == (200, "paused")
    refused = server.post("/v1/completions", PROMPT)
    assert (refused.status, refused.error["code"]) == (503, "paused")
    assert refused.headers["retry-after"] == "5"
    assert server.get("/ready").status == 503 and server.get("/health").status == 200
    assert server.get("/health").json()["status"] == "paused"
    fake.state = EngineState.RESTARTING
    assert server.post("/v1/completions", PROMPT).error["code"] == "paused"
    fake.state = EngineState.READY
    server.loop.call_soon_threadsafe(fake.gate.set)
    running.join(PATIENCE)
    assert answers[0].status == 200
    assert server.post("/resume", None).json()["status"] == "ready"
    assert server.get("/ready").status == 200
    assert server.post("/v1/completions", PROMPT).status == 200


@pytest.mark.parametrize("path", ["/drain", "/pause", "/resume"])
def test_control_needs_an_admin_where_keys_are_set(
    start: Any, fake: FakeEngine, tmp_path: Any, path: str
) -> None:
    file = tmp_path / "keys"
    file.write_text("client:alice:sk-alice\nmetrics:prom:sk-prom\n")
    server = start(fake, {"keys": load_keys(["sk-root"], str(file))})
    assert server.post(path, None).status == 401
    for key in ("sk-alice", "sk-prom"):
        assert server.post(path, None, authorization=f"Bearer {key}").status == 403
    assert server.get(path, authorization="Bearer sk-root").status == 405
    answer = server.post(path, None, authorization="Bearer sk-root")
    assert answer.status == (503 if path == "/drain" else 200), "nobody runs this server"


@pytest.mark.parametrize("path", ["/drain", "/pause", "/resume"])
def test_web_pages_do_not_control_a_server_without_keys(
    start: Any, fake: FakeEngine, path: str
) -> None:
    server = start(fake, {"allowed_origins": ("https://ops.example",)})
    for origin in ("https://evil.example", "null"):
        answer = server.post(path, None, origin=origin)
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
    assert not server.serving.paused
    assert server.post("/pause", None, origin="https://ops.example").status == 200


class Draining(FakeEngine):
    """Drained when told."""

    def __init__(self) -> None:
        super().__init__()
        self.drained = asyncio.Event()

    async def drain(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        await asyncio.wait_for(self.drained.wait(), timeout)
        return True


@pytest.fixture
def engine() -> Draining:
    return Draining()


@pytest.fixture
def drainable(start: Any, engine: Draining) -> LiveServer:
    """A server that has its Lifecycle; `ended` is set with the exit code."""
    server: LiveServer = start(engine)

    async def live() -> asyncio.Task[int]:
        life = Lifecycle(server.serving, 600.0)
        http = asyncio.create_task(asyncio.Event().wait())
        return asyncio.create_task(life.run(engine.start(), http, "", None))  # type: ignore[arg-type]

    server.ended = server.on_loop(live())  # type: ignore[attr-defined]
    return server


def test_d03_drain_over_http_ends_with_the_last_request(drainable: Any, engine: Draining) -> None:
    answer = drainable.post("/drain", None)
    assert answer.status == 202 and answer.json()["status"] == "draining"
    assert 599 < answer.json()["timeout"] < 601, "as --shutdown-timeout says"
    assert drainable.get("/ready").status == 503 and drainable.get("/health").status == 200
    refused = drainable.post("/v1/completions", PROMPT)
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert drainable.post("/pause", None).status == drainable.post("/resume", None).status == 409
    assert not drainable.ended.done()
    drainable.loop.call_soon_threadsafe(engine.drained.set)
    until(drainable.ended.done, "the end")
    assert drainable.ended.result() == 0


def test_d03_the_deadline_of_a_drain_can_be_moved(drainable: Any, engine: Draining) -> None:
    assert 499 < drainable.post("/drain?timeout=500", None).json()["timeout"] < 501
    # Asking again without a time only asks.
    assert 490 < drainable.post("/drain", None).json()["timeout"] < 501
    assert 3599 < drainable.post("/drain?timeout=3600", None).json()["timeout"] < 3601
    assert not drainable.ended.done()
    assert drainable.post("/drain?timeout=0", None).json()["timeout"] == 0
    until(drainable.ended.done, "the end, with requests still running")
    assert drainable.ended.result() == 0 and not engine.drained.is_set()


@pytest.mark.parametrize("value", ["-1", "soon", "nan", "86401", ""])
def test_a_bad_drain_timeout_drains_nothing(drainable: Any, value: str) -> None:
    answer = drainable.post(f"/drain?timeout={value}", None)
    assert (answer.status, answer.error["param"]) == (400, "timeout")
    assert not drainable.serving.draining


async def test_d01_an_engine_that_talks_but_computes_nothing_is_stuck() -> None:
    """Statistics without a step between them are no progress; with one they are, as tokens are."""
    engine = AsyncEngine(engine_config())
    session = SimpleNamespace(last_progress=0.0)
    engine._session = session  # type: ignore[assignment]
    engine._received(EngineStats(model="tiny", steps_total=5))
    assert session.last_progress > 0
    session.last_progress = 0.0
    engine._state, engine._stuck_since = EngineState.STUCK, 1.0
    engine._received(EngineStats(model="tiny", steps_total=5, running=1))
    assert session.last_progress == 0.0 and not engine.health().ok
    engine._received(EngineStats(model="tiny", steps_total=6, running=1))
    assert session.last_progress > 0 and engine.health().ready
    session.last_progress = 0.0
    engine._received(Tokens("tiny", 7))
    assert session.last_progress > 0
    engine._session = None


async def test_d01_a_loop_that_is_stuck_is_noticed() -> None:
    noticed = threading.Event()
    with LoopWatchdog(0.2, noticed.set):
        assert noticed.wait(PATIENCE), "the loop was blocked all the time"


async def test_d01_a_loop_that_turns_is_left_alone() -> None:
    noticed = threading.Event()
    with LoopWatchdog(0.4, noticed.set) as dog:
        for _ in range(20):
            await asyncio.sleep(0.01)
    await asyncio.to_thread(dog._thread.join, PATIENCE)
    assert not dog._thread.is_alive() and not noticed.is_set()


def test_d01_a_stuck_api_process_ends_with_its_own_exit_code() -> None:
    program = (
        "import asyncio, time\n"
        "from octavo.server.watchdog import LoopWatchdog\n"
        "async def main():\n"
        "    with LoopWatchdog(0.2):\n"
        "        time.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == API_STUCK == 4
    assert "the event loop is stuck" in ended.stderr and "in main" in ended.stderr


def test_a_serving_has_no_way_to_drain_before_it_runs(tokenizer: Tokenizer) -> None:
    serving = Serving(
        engine=FakeEngine(), tokenizer=tokenizer, template=None, names=("tiny",), max_model_len=8,
        vocab_size=VOCAB,
    )  # fmt: skip
    assert serving.begin_drain is None
    Lifecycle(serving, 1.0)
    assert serving.begin_drain is not None
