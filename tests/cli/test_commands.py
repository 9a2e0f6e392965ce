"""The commands, as users type them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from octavo.cli.chat import Server, converse
from octavo.cli.errors import CliError
from octavo.cli.run import Ask
from octavo.config import resolve, table
from octavo.core.params import SamplingParams
from support.tiny_models import write_chain, write_tiny_random

HEAVY = {"numpy", "torch", "transformers", "starlette", "uvicorn", "tokenizers", "jinja2", "yaml"}


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(write_tiny_random(tmp_path / "tiny", max_position=4096))


def test_help_takes_under_0_3_seconds_of_processor() -> None:
    command = [sys.executable, "-m", "octavo", "--help"]
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.3, seconds


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from octavo.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"rich"})


def test_no_arguments_show_the_commands(octavo) -> None:
    result = octavo()
    assert result.code == 0
    for name in ("serve", "run", "chat", "pull", "check", "bench", "config"):
        assert name in result.out


def test_version(octavo) -> None:
    result = octavo("--version")
    assert (result.code, result.out.split()[0]) == (0, "octavo")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "--prot", "3"], "unknown option --prot|did you mean --port?"),
        (["check", "--tensor-parallel-size=2"], "vLLM's --tensor-parallel-size is not supported"),
        (["check", "--num-gpu-blocks-override", "9"], "--kv-tokens"),
        (["serve", "--port", "99999"], "port must be a whole number from 0 to 65535, not '99999'"),
        (["serve", "--gpu-memory-utilization", "1.2"], "above 0 and at most 1, not '1.2'"),
        (["serve", "one", "--model", "two"], "two models are given"),
        (["serve", "one", "two"], "two"),
        (["surve"], "serve"),
        (["config"], "see octavo config --help"),
        (["run"], "argument|prompt"),
    ],
)
def test_errors_of_use_exit_with_2_and_say_what_to_do(octavo, words, told) -> None:
    result = octavo(*words)
    assert result.code == 2
    assert result.err.startswith("error: ") and "Traceback" not in result.err
    for part in told.split("|"):
        assert part in result.err


def test_a_stack_trace_comes_only_with_log_level_debug(process, tmp_path) -> None:
    plain = process("check", str(tmp_path / "absent"))
    assert plain.code == 1 and "Traceback" not in plain.err
    for words, env in ((["--log-level", "debug"], {}), ([], {"OCTAVO_LOG_LEVEL": "debug"})):
        assert "Traceback" in process("check", str(tmp_path / "absent"), *words, env=env).err


def test_config_show_tells_where_values_come_from(octavo, monkeypatch, tmp_path) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text('max_num_seqs = 3\napi_key = ["very-secret"]\n')
    monkeypatch.setenv("OCTAVO_PORT", "9001")
    words = ["config", "show", "--config", str(file), "--gpu-memory-utilization", "0.5"]
    text = octavo(*words).out
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in text.splitlines()}
    assert rows["port"] == ["9001", "env (OCTAVO_PORT)"]
    assert rows["max_num_seqs"] == ["3", f"file ({file})"]
    assert rows["memory_utilization"] == ["0.5", "flag (--memory-utilization)"]
    assert rows["threads"][1].startswith("derived (affinity")
    assert rows["host"] == ["127.0.0.1", "default"]
    assert "very-secret" not in text
    values = json.loads(octavo(*words, "--json").out)
    assert set(values) == {row.name for row in table()}
    assert values["port"] == {"value": 9001, "source": "env", "detail": "OCTAVO_PORT"}
    assert "very-secret" not in json.dumps(values)


def test_check_reports_for_people_and_programs(octavo, tiny) -> None:
    people = octavo("check", tiny, "--kv-tokens", "2048")
    assert people.code == 0
    for part in (
        f"{tiny}: supported, and runs on this machine",
        "LlamaForCausalLM, 139.6 thousand parameters",
        "float32",
        "on disk",
        "KV cache",
        "holds 1 chats of 2,048 tokens",
        "longest context that fits: 2,048 tokens",
        "a token (",
        "BPE, byte-level; 512 tokens, 6 of them special",
        "begins with '<|bos|>' (506)",
        "ends with '<|eos|>' (511)",
        "| <|bos|><|user|>Hi<|end|><|assistant|>Hello!<|end|>",
        f"octavo serve {tiny} --kv-tokens 2048",
        f"octavo chat {tiny} --kv-tokens 2048",
    ):
        assert part in people.out, people.out
    facts = json.loads(octavo("check", tiny, "--kv-tokens", "2048", "--json").out)
    assert facts["supported"] and facts["fits"]
    assert facts["largest_context"] == facts["max_model_len"] == 2048
    assert sum(line["bytes"] for line in facts["ledger"]) <= facts["budget_bytes"]
    assert facts["threads"]["count"] >= 1


def test_check_as_json_when_it_does_not_fit(octavo, tiny) -> None:
    result = octavo("check", tiny, "--kv-tokens", "64", "--max-model-len", "100", "--json")
    assert result.code == 1
    facts = json.loads(result.out)
    assert facts["fits"] is False and facts["largest_context"] == 64
    assert "  --max-model-len 64" in facts["hint"]


def test_pull_prints_the_path(octavo, tiny) -> None:
    result = octavo("pull", tiny)
    assert (result.code, result.out) == (0, f"{tiny}\n")


def test_run_streams_the_answer_to_standard_output(process, tmp_path) -> None:
    model = str(write_chain(tmp_path / "chain", ["Hello", ",", " world"]))
    result = process("run", "x", "--raw", "--model", model, "--temperature", "0")
    assert result.code == 0, result.err
    assert result.out == EXPECTED_CHAIN


EXPECTED_CHAIN = "Hello, world\n"


class FakeApi(BaseHTTPRequestHandler):
    """Answers like a chat route; "fail" fails, "break" breaks off."""

    seen: list[dict[str, object]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).seen.append({**body, "auth": self.headers.get("authorization")})
        if body["messages"][-1]["content"] == "fail":
            self._send(400, json.dumps({"error": {"message": "too long"}}))
            return
        events = [{"choices": [{"delta": {"content": piece}}]} for piece in ("Hel", "lo é")]
        if body["messages"][-1]["content"] == "break":
            events.append({"error": {"message": "the engine died"}})
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self._send(200, f": beat\n\n{lines}data: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def api() -> Iterator[str]:
    FakeApi.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_chat_with_a_server(api: str, capsys, monkeypatch) -> None:
    lines = iter(["Hi", "", "again", "/new", "third", "/bye", "never"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    options = resolve({"api_key": ["sk-1"], "model": "m"}, env={})
    ask = Ask(max_tokens=5, temperature=0.5, system="Be brief.")
    converse(Server(f"{api}/v1/", options, ask).answer, ask)
    assert capsys.readouterr().out == "Hello é\n" * 3
    first, second, third = FakeApi.seen
    assert first["auth"] == "Bearer sk-1" and first["model"] == "m"
    assert first["max_tokens"] == 5 and first["temperature"] == 0.5 and "seed" not in first
    system = {"role": "system", "content": "Be brief."}
    hi = {"role": "user", "content": "Hi"}
    assert first["messages"] == [system, hi]
    said = {"role": "assistant", "content": "Hello é"}
    assert second["messages"] == [system, hi, said, {"role": "user", "content": "again"}]
    assert third["messages"] == [system, {"role": "user", "content": "third"}]
    assert next(lines) == "never"


@pytest.mark.parametrize(
    ("content", "told"), [("fail", "answered 400: too long"), ("break", "the engine died")]
)
def test_chat_shows_a_servers_errors(api: str, content: str, told: str) -> None:
    server = Server(api, resolve(env={}), Ask(5))
    with pytest.raises(CliError, match=told):
        list(server.answer([{"role": "user", "content": content}]))


def test_chat_without_a_server_there(process) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "chat", "--url", "127.0.0.1:9"],
        input="hello\n",
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 1
    assert "cannot reach 127.0.0.1:9" in done.stderr and "octavo serve" in done.stderr


def test_asking_leaves_to_the_model_what_the_user_did_not_say() -> None:
    defaults = {"temperature": 0.2, "top_p": 0.8}
    assert Ask(7).params(defaults) == SamplingParams(temperature=0.2, top_p=0.8, max_tokens=7)
    told = Ask(7, temperature=1.0, seed=3).params(defaults)
    assert (told.temperature, told.top_p, told.seed) == (1.0, 0.8, 3)


def test_a_refusal_comes_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """Neither HTTP nor what would make a model of every flag."""
    (tmp_path / "config.json").write_text('{"architectures": ["MysteryForCausalLM"]}')
    code = f"""
import sys
from octavo.cli import main
sys.argv = ["octavo", "serve", {str(tmp_path)!r}, "--port", "0"]
try:
    main()
except SystemExit as end:
    assert end.code == 1, end.code
assert not {{"pydantic", "uvicorn", "starlette.routing"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "not supported" in done.stderr, done.stderr
