"""The default model behind the real command line, asked by the real `openai` client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import openai
import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo", "serve", "--port", str(port)],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while True:
        if process.poll() is not None:
            text = log.read_text()
            if "download" in text.lower() and "offline" in text.lower():
                pytest.skip(f"the default model cannot be fetched here: {text[-500:]}")
            pytest.fail(f"octavo serve ended with {process.returncode}:\n{text}")
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                break
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
    try:
        yield url, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        text = log.read_text()
        assert "Ctrl-C drains" in text and "curl" in text and url in text, text


@pytest.fixture
def client(server: tuple[str, subprocess.Popen[bytes]]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none")


CHAT = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def test_chat_answers_sensibly_streamed_and_not(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(
        model=model,
        messages=CHAT,
        temperature=0,
        max_tokens=32,  # type: ignore[arg-type]
    )
    text = whole.choices[0].message.content
    assert text is not None and "Paris" in text
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    pieces = []
    stream = client.chat.completions.create(
        model=model,
        messages=CHAT,
        temperature=0,
        max_tokens=32,
        stream=True,  # type: ignore[arg-type]
    )
    for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "")
    assert "".join(pieces) == text
    assert len(pieces) > 3


def test_completions_continue_the_text(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    answer = client.completions.create(
        model=model, prompt="1, 2, 3, 4, 5, 6, 7,", temperature=0, max_tokens=12
    )
    assert answer.choices[0].text.startswith(" 8, 9")
    assert answer.choices[0].finish_reason == "length"


def test_a_repeated_prompt_is_served_from_the_cache(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    texts, cached = [], []
    for _ in range(2):
        answer = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=8)
        texts.append(answer.choices[0].text)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert texts[0] == texts[1]
    assert cached[1] is not None and cached[1] >= 160
