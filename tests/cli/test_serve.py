"""`octavo serve` and its older spelling, as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.tiny_models import write_chain

Serve = Callable[..., "Server"]
PATIENCE = 60.0


class Server:
    """One server process; `log` is what it printed."""

    def __init__(self, module: str, words: list[str], log: Path) -> None:
        self._log = log
        env = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**env, "NO_COLOR": "1"},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def url(self) -> str:
        """Waits until it is ready."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(r"url +(http://\S+)", self.log)):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log
            time.sleep(0.02)
        return found[1]

    def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        request = urllib.request.Request(
            self.url() + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.load(response)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    running: list[Server] = []

    def start(*words: str, module: str = "octavo") -> Server:
        server = Server(module, list(words), tmp_path / f"log-{len(running)}")
        running.append(server)
        return server

    yield start
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_chain(tmp_path / "tiny-chain", ["Hello", ",", " world"]))


def test_without_a_chat_template_the_example_completes_a_text(serve: Serve, model: str) -> None:
    config = Path(model) / "tokenizer_config.json"
    said = json.loads(config.read_text())
    said.pop("chat_template", None)
    config.write_text(json.dumps(said))
    (Path(model) / "chat_template.jinja").unlink(missing_ok=True)
    server = serve("serve", model, "--port", "0", "--kv-tokens", "4096")
    assert f"curl {server.url()}/v1/completions" in server.log
    assert "chat/completions" not in server.log


def test_serve_says_all_there_is_to_know(serve: Serve, model: str) -> None:
    server = serve("serve", model, "--port", "0", "--kv-tokens", "4096")
    url = server.url()
    assert [line[:5] for line in server.log.splitlines() if line.startswith("[")] == [
        f"[{number}/5]" for number in range(1, 6)
    ]
    for part in (
        "tiny-chain: LlamaForCausalLM",
        "context  2,048 tokens",
        "threads" if (os.cpu_count() or 1) > 1 else "thread",
        "affinity",
        "cgroup quota",
        "holds 2 chats of 2,048 tokens",
        f"curl {url}/v1/chat/completions",
        "Ctrl-C drains",
    ):
        assert part in server.log, server.log
    answer = server.post("/v1/completions", {"prompt": "x", "temperature": 0, "max_tokens": 9})
    assert answer["model"] == "tiny-chain"
    assert answer["choices"][0]["text"] == "Hello, world"
    assert server.stop() == 0


def test_the_older_spelling_with_its_older_names(serve: Serve, model: str) -> None:
    server = serve(
        *("--model", model, "--block-size", "32", "--max-num-batches", "128"),
        *("--gpu-memory-utilization", "0.95", "--port", "0", "--served-model-name", "old"),
        module="octavo.entrypoints.api_server",
    )
    body = {"prompt": "x", "temperature": 0, "max_tokens": 9}
    assert server.post("/generate", body)["text"] == ["xHello, world"]
    assert server.post("/v1/completions", body)["model"] == "old"
    assert server.stop() == 0


def test_json_logs_have_nothing_else_between_them(serve: Serve, model: str) -> None:
    server = serve("serve", model, "--port", "0", "--log-format", "json")
    deadline = time.monotonic() + PATIENCE
    while "is served at" not in server.log:
        assert server.process.poll() is None and time.monotonic() < deadline, server.log
        time.sleep(0.02)
    assert server.stop() == 0
    lines = server.log.splitlines()
    assert lines and all(isinstance(json.loads(line), dict) for line in lines), server.log
