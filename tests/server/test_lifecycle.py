"""From start to end: the port, loading, draining, signals, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.errors import EngineStartError
from octavo.engine.health import EngineState
from octavo.server.lifecycle import ENGINE_FAILED, Lifecycle
from octavo.server.port import PortInUse, bind, url_of
from octavo.server.serving import Serving
from octavo.text.tokenizer import Tokenizer
from support.fake_engine import FakeEngine
from support.live_server import until
from support.tiny_models import write_loop
from support.tiny_tokenizer import VOCAB


def test_the_port_is_taken_before_anything_else() -> None:
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} on 127.0.0.1 is in use") as error:
            bind("127.0.0.1", port)
        assert error.value.free is not None and error.value.free > port
        bind("127.0.0.1", error.value.free).close()
        assert url_of(first) == f"http://127.0.0.1:{port}"


class SlowEngine(FakeEngine):
    """Loads until told; `starting` fails the start."""

    def __init__(self) -> None:
        super().__init__()
        self.state = EngineState.LOADING
        self.loaded = asyncio.Event()
        self.starting: Exception | None = None
        self.closed = False

    async def start(self) -> None:
        await self.loaded.wait()
        if self.starting is not None:
            raise self.starting
        self.state = EngineState.READY

    async def drain(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        self.state = EngineState.DRAINING
        return not self.live

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def slow(tokenizer: Tokenizer) -> tuple[SlowEngine, Serving]:
    engine = SlowEngine()
    return engine, Serving(
        engine=engine, tokenizer=tokenizer, template=None, names=("tiny",), max_model_len=64,
        vocab_size=VOCAB,
    )  # fmt: skip


async def test_d01d_not_ready_while_loading(slow: tuple[SlowEngine, Serving]) -> None:
    engine, serving = slow
    life = Lifecycle(serving, 5.0)
    http = asyncio.create_task(asyncio.sleep(60))
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    run = asyncio.create_task(
        life.run(engine.start(), http, "http://x", lambda at, chats: url.set_result(at))
    )
    await asyncio.sleep(0)
    assert not serving.ready and serving.state()[0] == "loading" and not url.done()
    engine.loaded.set()
    assert await asyncio.wait_for(url, 5) == "http://x"
    assert serving.ready
    life.stop()
    assert not serving.ready and serving.state()[0] == "draining"
    assert await asyncio.wait_for(run, 5) == 0
    assert engine.closed
    http.cancel()


async def test_d01a_an_engine_beyond_recovery_ends_the_server(
    slow: tuple[SlowEngine, Serving],
) -> None:
    engine, serving = slow
    engine.loaded.set()
    http = asyncio.create_task(asyncio.sleep(60))
    run = asyncio.create_task(Lifecycle(serving, 5.0).run(engine.start(), http, "", None))
    await asyncio.sleep(0.05)
    engine.failed.set()
    assert await asyncio.wait_for(run, 5) == ENGINE_FAILED
    assert engine.closed
    http.cancel()


async def test_a_failed_start_and_a_signal_while_loading(
    slow: tuple[SlowEngine, Serving],
) -> None:
    engine, serving = slow
    http = asyncio.create_task(asyncio.sleep(60))
    life = Lifecycle(serving, 5.0)
    run = asyncio.create_task(life.run(engine.start(), http, "", None))
    await asyncio.sleep(0.05)
    life.stop()
    assert await asyncio.wait_for(run, 5) == 0
    engine.loaded.set()
    engine.starting = EngineStartError("no weights", "model_error")
    with pytest.raises(EngineStartError, match="no weights"):
        await asyncio.wait_for(Lifecycle(serving, 5.0).run(engine.start(), http, "", None), 5)
    assert engine.closed
    http.cancel()


class Process:
    """The server as a user starts it, by the old spelling of the command."""

    def __init__(self, model: Path, log: Path, *flags: str) -> None:
        self.log = log
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "NO_COLOR": "1"}
        command = [
            sys.executable, "-m", "octavo.entrypoints.api_server", "--model", str(model),
            "--port", "0", "--block-size", "32", "--max-num-batches", "64", "--kv-tokens", "65536",
            "--gpu-memory-utilization", "0.95", "--served-model-name", "tiny", *flags,
        ]  # fmt: skip
        with log.open("wb") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_ready(self) -> None:
        until(lambda: bool(self._url()) or self.process.poll() is not None, "the banner", 60.0)
        assert self.process.poll() is None, self.text
        self.port = int(self._url()[0])
        assert self.get("/ready")[0] == 200

    def _url(self) -> list[str]:
        return re.findall(r"http://127\.0\.0\.1:(\d+)", self.text)

    def get(self, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, data)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.process.pid}/task")
        listed = [(task / "children").read_text().split() for task in tasks.iterdir()]
        return [int(pid) for pids in listed for pid in pids]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    model = write_loop(tmp_path / "model")
    processes: list[Process] = []

    def begin(*flags: str, ready: bool = True) -> Process:
        process = Process(model, tmp_path / f"log{len(processes)}", *flags)
        processes.append(process)
        if ready:
            process.wait_ready()
        return process

    yield begin
    for process in processes:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait(10)


def endless(process: Process, answers: list[bytes]) -> threading.Thread:
    body = {"prompt": "z", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    thread = threading.Thread(
        target=lambda: answers.append(process.get("/v1/completions", body)[1])
    )
    thread.start()
    return thread


def test_d03_sigterm_drains_then_cuts(run: Any) -> None:
    """Running streams have --shutdown-timeout, then end with an explicit error; nothing is left."""
    process = run("--shutdown-timeout", "1.5")
    status, body = process.get("/generate", {"prompt": "z", "max_tokens": 3})
    assert status == 200 and json.loads(body) == {"text": ["zzzz"]}
    answers: list[bytes] = []
    threads = [endless(process, answers) for _ in range(4)]
    until(lambda: b'requests_running{model_name="tiny"} 4' in process.get("/metrics")[1], "4 run")
    children = process.children()
    assert children
    process.process.send_signal(signal.SIGTERM)
    until(lambda: process.get("/ready")[0] == 503, "not ready at once", 1.0)
    status, refused = process.get("/v1/completions", {"prompt": "x"})
    assert status == 503 and json.loads(refused)["error"]["code"] == "draining"
    assert process.get("/health")[0] == 200
    assert process.process.wait(20) == 0, process.text
    for thread in threads:
        thread.join(5)
    assert len(answers) == 4
    for answer in answers:
        last = answer.decode().strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_closed"
        assert b"[DONE]" not in answer
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    with pytest.raises(ConnectionRefusedError), socket.socket() as probe:
        probe.connect(("127.0.0.1", process.port))
    assert "Traceback" not in process.text


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_d03_a_signal_while_the_engine_loads(run: Any, which: signal.Signals) -> None:
    """That is an orderly end too, and the engine process goes with it."""
    with bind("127.0.0.1", 0) as found:
        port = found.getsockname()[1]
    process = run("--port", str(port), ready=False)
    until(lambda: bool(process.children()) or process.process.poll() is not None, "an engine", 60)
    (engine,) = process.children()
    # Until it runs its own program, its parent waits for it.
    program = Path(f"/proc/{engine}/cmdline")
    until(lambda: b"octavo.engine.process" in program.read_bytes(), "it begins", 60)
    os.kill(engine, signal.SIGSTOP)  # so that it is loading for as long as this takes
    process.port = port

    def answers() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            return bool(process.get("/health")[0] == 200)
        return False

    until(answers, "the server answers", 60)
    assert process.get("/ready")[0] == 503
    process.process.send_signal(which)
    assert process.process.wait(20) == 0, process.text
    assert "failed" not in process.text and "Traceback" not in process.text
    assert not Path(f"/proc/{engine}").exists()


def test_d03_short_requests_finish_and_a_second_signal_ends_now(run: Any) -> None:
    process = run("--shutdown-timeout", "600")
    answers: list[bytes] = []
    body = {"prompt": "z", "max_tokens": 1500, "ignore_eos": True}
    short = threading.Thread(target=lambda: answers.append(process.get("/v1/completions", body)[1]))
    short.start()
    until(lambda: b'requests_running{model_name="tiny"} 1' in process.get("/metrics")[1], "it runs")
    long = endless(process, answers)
    until(
        lambda: b'requests_running{model_name="tiny"} 2' in process.get("/metrics")[1], "both run"
    )
    process.process.send_signal(signal.SIGINT)
    short.join(120)
    assert json.loads(answers[0])["usage"]["completion_tokens"] == 1500
    assert process.process.poll() is None, "the long one still runs"
    begin = time.monotonic()
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(10) == 0
    assert time.monotonic() - begin < 5
    long.join(5)
    assert b"engine_closed" in answers[1]


def test_a17_a_broken_template_ends_the_start(tmp_path: Path) -> None:
    """At once, with the line at fault, not at the first request; no engine is left behind."""
    template = tmp_path / "broken.jinja"
    template.write_text("hello\n{% for x in %}")
    model = write_loop(tmp_path / "model")
    process = Process(model, tmp_path / "log", "--chat-template", str(template))
    code = process.process.wait(60)
    assert code not in (0, None) and "line 2" in process.text and "Traceback" not in process.text
