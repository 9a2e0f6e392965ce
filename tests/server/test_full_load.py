"""Everything at its declared maximum at once stays within the memory that was planned (C12)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from octavo.config import resolve
from octavo.deploy import prepare
from support.live_server import Answer, LiveServer
from support.real_server import real_server
from support.tiny_models import tiny_random

ROWS, CONTEXT = 12, 512
LIMITS: dict[str, Any] = {
    "max_model_len": CONTEXT, "kv_tokens": ROWS * CONTEXT, "max_num_seqs": ROWS, "threads": 1,
}  # fmt: skip


def peak_bytes(pid: int) -> int:
    """The most that the process has had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_random().write(tmp_path_factory.mktemp("model"))


def test_c12_all_rows_at_full_length_with_all_logprobs(model: Path) -> None:
    planned = sum(
        line.bytes for line in prepare(resolve({**LIMITS, "model": str(model)})).plan.ledger()
    )
    with real_server(model, **LIMITS) as server:
        answers = at_the_maximum(server)
        for answer in answers:
            assert answer.status == 200, answer.body[:300]
            (choice,) = answer.json()["choices"]
            assert len(choice["logprobs"]["tokens"]) == CONTEXT
            assert len(choice["logprobs"]["top_logprobs"][CONTEXT // 2]) >= 20
        engine: Any = server.serving.engine
        assert engine.health().restarts == 0
        assert peak_bytes(engine.pid) <= planned


def at_the_maximum(server: LiveServer) -> list[Answer]:
    """As many requests as rows, each of the whole context, with echo, logprobs and stop lists."""
    answers: list[Answer] = []

    def ask(number: int) -> None:
        body = {
            "prompt": [(7 * number + i) % 200 + 1 for i in range(CONTEXT - 64)],
            "max_tokens": 64, "ignore_eos": True, "echo": True, "logprobs": 20,
            "stop": [f"never {i}" for i in range(4)],
        }  # fmt: skip
        answers.append(server.post("/v1/completions", body))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(ROWS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == ROWS
    return answers
