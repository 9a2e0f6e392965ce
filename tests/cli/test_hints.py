"""What users are told when something is in the way: each hint is compared with its snapshot."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
from huggingface_hub.errors import GatedRepoError

from octavo.cli import serve as serve_module
from octavo.machine import Machine
from support.tiny_models import write_tiny_random


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(write_tiny_random(tmp_path / "tiny", max_position=4096))


def machine_with(memory: int) -> Machine:
    return Machine(affinity=2, cpu_quota=None, cgroup_memory=memory, available_memory=None)


def test_port_in_use_offers_the_next(process, snapshot, tiny) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = process("serve", tiny, "--port", str(port))
    assert result.code == 1
    offered = int(re.findall(r"--port (\d+)", result.err)[0])
    assert offered > port
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", offered))
    text = result.err.replace(str(offered), "NEXT").replace(str(port), "PORT")
    snapshot("port_in_use", text)


def test_no_compiler(snapshot, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("octavo.ops.native.native_reason", lambda: "no C++ compiler was found")
    serve_module.warn_without_kernels(said.append)
    snapshot("no_compiler", "\n".join(said) + "\n")
    monkeypatch.setattr("octavo.ops.native.native_reason", lambda: "")
    serve_module.warn_without_kernels(said.append)
    assert len(said) == 1


def test_download_failed_behind_a_dead_proxy(process, snapshot, tmp_path) -> None:
    dead = "http://127.0.0.1:9"
    env = {"PIP_INDEX_URL": f"{dead}/simple", "HTTPS_PROXY": dead}
    env |= {"PIP_CONFIG_FILE": "/dev/null", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    result = process("pull", "smollm2-135m", "--cache-dir", str(tmp_path), env=env)
    assert result.code == 1
    # The part in brackets is what pip said, in its own words; a slow attempt tells of its progress.
    said = re.sub(r"^ .* bytes of .*\n", "", result.err, flags=re.M)
    snapshot("download_failed", re.sub(r"\(.*\)", "(...)", said, flags=re.S))


def test_download_while_offline(octavo, snapshot, tmp_path) -> None:
    result = octavo("pull", "smollm2-135m", "--offline", "--cache-dir", str(tmp_path))
    assert result.code == 1
    snapshot("offline", result.err.replace(str(tmp_path), "CACHE"))


def test_gated_model(octavo, snapshot, monkeypatch) -> None:
    import httpx
    import huggingface_hub

    def refuse(repo_id: str, **_: object) -> str:
        address = f"https://huggingface.co/{repo_id}"
        response = httpx.Response(403, request=httpx.Request("GET", address))
        raise GatedRepoError("gated", response=response)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    result = octavo("pull", "meta-llama/Llama-3.2-1B")
    assert result.code == 1
    snapshot("gated_model", result.err)


def test_disk_full(octavo, snapshot, tmp_path, monkeypatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    result = octavo("pull", "smollm2-135m", "--cache-dir", str(tmp_path))
    assert result.code == 1
    text = result.err.replace(str(tmp_path), "CACHE")
    snapshot("disk_full", re.sub(r"[\d,]+ bytes are needed", "N bytes are needed", text))


def test_disk_full_while_writing(octavo, snapshot, monkeypatch) -> None:
    import errno

    def fail(options: object, progress: object = None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/model.gguf")

    monkeypatch.setattr("octavo.cli.pull.find_model", fail)
    result = octavo("pull", "some/model")
    assert result.code == 1
    snapshot("disk_full_while_writing", result.err)


def test_c11_model_too_big_says_which_context_fits(octavo, snapshot, tiny, monkeypatch) -> None:
    memory = 222 * 1024**2
    monkeypatch.setattr("octavo.cli.check.inspect", lambda: machine_with(memory))
    result = octavo(
        "check",
        tiny,
        "--max-model-len",
        "4096",
        "--max-num-batched-tokens",
        "2048",
        "--backend",
        "reference",
    )
    assert result.code == 1
    snapshot("model_too_big", result.err)
    fits = re.findall(r"--max-model-len (\d+)", result.err)[0]
    again = octavo(
        "check",
        tiny,
        "--max-model-len",
        fits,
        "--max-num-batched-tokens",
        "2048",
        "--backend",
        "reference",
    )
    assert again.code == 0, again.err


def test_c11_fixed_cache_too_small(octavo, snapshot, tiny) -> None:
    result = octavo(
        "check", tiny, "--kv-tokens", "512", "--max-model-len", "900", "--backend", "reference"
    )
    assert result.code == 1
    snapshot("cache_too_small", re.sub(r"may be used .*", "may be used SIZE", result.err))


def test_c11_longer_than_the_model(octavo, snapshot, tiny) -> None:
    result = octavo("check", tiny, "--max-model-len", "5000")
    assert result.code == 2
    snapshot("longer_than_the_model", result.err)


def test_wrong_architecture(octavo, snapshot, tmp_path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    config = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 100}
    (folder / "config.json").write_text(json.dumps(config))
    result = octavo("check", str(folder))
    assert result.code == 1
    text = re.sub(r"are .* \(in GGUF: .*?\)", "are FAMILIES", result.err)
    snapshot("wrong_architecture", text.replace(str(folder), "MODEL"))


def test_no_such_model(octavo, snapshot) -> None:
    result = octavo("check", "smolm2-135m")
    assert result.code == 1
    snapshot("no_such_model", result.err)


def test_public_address_without_a_key(process, snapshot, tiny) -> None:
    result = process("serve", tiny, "--host", "0.0.0.0", "--port", "0")
    assert result.code == 2
    snapshot("public_address", result.err[result.err.index("error:") :])


def test_an_address_that_is_not_ours(process, snapshot, tiny) -> None:
    result = process("serve", tiny, "--host", "192.0.2.1", "--allow-public", "--port", "8000")
    assert result.code == 1
    snapshot("not_our_address", result.err)
