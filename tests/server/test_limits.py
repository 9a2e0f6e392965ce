"""Bodies and heads that are too large, malformed or absurd; small bodies that ask for huge work."""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import Any

import pytest

from support.fake_engine import FakeEngine
from support.live_server import Answer, LiveServer

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def exchange(server: LiveServer, data: bytes) -> bytes:
    """Sends raw bytes and reads the answer until the server closes or 65 kB came."""
    answer = b""
    with server.raw() as connection:
        # The answer may come before all was sent, and still be there to read.
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            while len(answer) < 65536 and (more := connection.recv(4096)):
                answer += more
    return answer


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 100000},
        {"best_of": 10000},
        {"stop": ["x"] * 500000},
        {"stop": ["x" * 10**6]},
        {"stop_token_ids": [1] * 10**5},
        {"logit_bias": {str(i): 1 for i in range(10**5)}},
        {"logprobs": 100000},
        {"logprobs": -1},
        {"logprobs": 511},
        {"logprobs": 512},
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 512},
        {"max_tokens": 10**12},
        {"prompt": ["a"] * 10**6},
        {"prompt": ["a"] * 1024, "n": 8},
        {"prompt": [[1]] * 2000},
        {"min_tokens": 10**12},
        {"seed": 2**63},
        {"seed": -1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_d08_small_body_huge_work(
    server: LiveServer, fake: FakeEngine, fields: dict[str, Any]
) -> None:
    body = json.dumps({"prompt": "x", **fields}).encode()
    begin = time.monotonic()
    answer = server.request("POST", "/v1/completions", body)
    assert answer.status == 400 and answer.error["message"]
    assert time.monotonic() - begin < 2.0
    assert not fake.submissions and len(answer.body) < 2000


def test_d08_chat_spellings(server: LiveServer, fake: FakeEngine) -> None:
    for fields in (
        {"top_logprobs": -1, "logprobs": True},
        {"top_logprobs": 10**6, "logprobs": True},
        {"messages": [{"role": "user", "content": "x"}] * 10**5},
        {"tools": [{}] * 10**4},
        {"max_completion_tokens": 10**12},
    ):
        answer = server.post("/v1/chat/completions", {**CHAT, **fields})
        assert answer.status == 400, fields.keys()
    assert not fake.submissions


@pytest.mark.parametrize(
    ("path", "head", "value", "tail"),
    [
        ("/v1/completions", b'{"prompt":[', b"1,", b"1]}"),
        ("/v1/completions", b'{"prompt":[', b"[1],", b"[1]]}"),
        ("/v1/completions", b'{"prompt":"x","stop":[', b'"x",', b'"x"]}'),
        ("/v1/completions", b'{"prompt":"x",', b'"x":1,', b'"x":1}'),
        ("/v1/chat/completions", b'{"messages":[', b'{"role":"user"},', b'{"role":"user"}]}'),
        ("/tokenize", b'{"messages":[', b'{"role":"user"},', b'{"role":"user"}]}'),
        ("/detokenize", b'{"tokens":[', b"1,", b"1]}"),
    ],
)
def test_d02_bodies_of_millions_of_values_are_not_read(
    server: LiveServer, fake: FakeEngine, path: str, head: bytes, value: bytes, tail: bytes
) -> None:
    """A decoder holds the loop: ten million values would take seconds."""
    body = head + value * (24 * 1024**2 // len(value)) + tail
    answer = server.request("POST", path, body)
    assert answer.status == 400 and answer.error["code"] == "body_too_large"
    text = json.dumps({"prompt": "," * 1_000_000, "messages": None, "max_tokens": 1}).encode()
    assert server.request("POST", "/v1/completions", text).error["code"] != "body_too_large"
    assert not fake.submissions


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_d08_as_many_messages_everywhere(server: LiveServer, path: str) -> None:
    message = {"role": "user", "content": ""}
    answer = server.post(path, {"messages": [message] * 8193})
    assert answer.status == 400 and "8192" in answer.error["message"]
    call = {"function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "", "tool_calls": [call] * 1025}
    answer = server.post(path, {"messages": [message]})
    assert answer.status == 400 and answer.error["param"] == "messages[0].tool_calls"


def test_d08_logprobs_of_prompts_times_choices(server: LiveServer, fake: FakeEngine) -> None:
    """Every choice repeats them: a body of 1 kB asked for gigabytes."""
    for fields in ({"echo": True, "logprobs": 20}, {"prompt_logprobs": 20}):
        body = {"prompt": [[1] * 100] * 16, "n": 128, "max_tokens": 1, **fields}
        answer = server.post("/v1/completions", body)
        assert answer.status == 400 and "2097152" in answer.error["message"]
    assert not fake.submissions


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("depth", [950, 951, 952, 953, 954, 955, 956, 957, 958, 959, 5000, 50000])
def test_d09_deep_tool_calls(server: LiveServer, path: str, depth: int) -> None:
    """Reading, converting and rendering a value go each to another depth."""
    deep = "[" * depth + "]" * depth
    for arguments in (deep, json.dumps(deep)):
        message = '{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":%s}}]}'
        body = '{"max_tokens":1,"messages":[%s]}' % (message % arguments)
        answer = server.request("POST", path, body.encode())
        assert answer.status in (200, 400), (arguments[:2], answer.body)
        if depth >= 5000:
            assert "nested too deeply" in answer.error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"[" * 20000,
        b'{"prompt":"x","zz":' + b"[" * 20000,
        b'{"prompt":"x","zz":' + b"[" * 20000 + b"]" * 20000 + b"}",
        b'{"prompt":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
        b'{"prompt":"x","temperature":NaN}',
        b'{"prompt":"x","temperature":Infinity}',
        b'{"prompt":"\xff\xfe"}',
        b'{"prompt":"\\ud83d"}',
        b'{"prompt":"\xed\xa0\xbd"}',
        b'\xef\xbb\xbf{"prompt":"x"}',
        b"prompt=x&n=1",
        b"null",
        b"[]",
        b'"x"',
        b'{"prompt":"x"',
        b'{"prompt":"x"}}',
        b"\x1f\x8b\x08\x00 gzip",
    ],
)
def test_d09_bodies_that_are_not_json(server: LiveServer, fake: FakeEngine, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/generate"):
        answer = server.request("POST", path, body)
        assert answer.status == 400 and len(answer.body) < 2000
        assert answer.error["type"] == "invalid_request_error"
    assert not fake.submissions


def test_d09_harmless_oddities(server: LiveServer) -> None:
    deep = b'{"prompt":"x","zz":' + b"[" * 300 + b"]" * 300 + b"}"
    twice = b'{"prompt":"a","prompt":"b"}'
    pair = b'{"prompt":"\\ud83d\\ude00"}'
    for body in (deep, twice, pair):
        answer = server.request("POST", "/v1/completions", body, {"content-type": "text/plain"})
        assert answer.status == 200


def test_d09_body_over_the_limit(start: Any, fake: FakeEngine) -> None:
    server = start(fake, {"max_body_size": 10_000})
    assert server.post("/v1/completions", {"prompt": "x" * 20_000}).status == 413
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    declared = exchange(server, head + b"content-length: 1073741824\r\n\r\n")
    assert declared.startswith(b"HTTP/1.1 413") and b"--max-body-size" in declared
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    chunked = exchange(server, head + b"transfer-encoding: chunked\r\n\r\n" + chunk * 20)
    assert chunked.startswith(b"HTTP/1.1 413")
    assert server.post("/v1/completions", {"prompt": "x"}).status == 200


def test_d09_heads_over_the_limit(server: LiveServer) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: x\r\n"
    one = exchange(server, head + b"x-big: " + b"a" * 2_000_000 + b"\r\n\r\n")
    assert one == b"" or one.startswith(b"HTTP/1.1 431")
    many = exchange(server, head + b"".join(b"x-%d: y\r\n" % i for i in range(10_000)) + b"\r\n")
    assert many == b"" or many.startswith(b"HTTP/1.1 431")
    few = exchange(server, head + b"".join(b"x-%d: y\r\n" % i for i in range(300)) + b"\r\n")
    assert few.startswith(b"HTTP/1.1 431")
    normal = exchange(server, head + b"x: " + b"a" * 30_000 + b"\r\nconnection: close\r\n\r\n")
    assert normal.startswith(b"HTTP/1.1 200")
    assert exchange(server, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_d09_slow_heads_and_bodies(
    start: Any, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.protocol.HEAD_TIMEOUT", 0.2)
    monkeypatch.setattr("octavo.server.middleware.BODY_TIMEOUT", 0.2)
    server = start(fake)
    assert exchange(server, b"GET /health HT").startswith(b"HTTP/1.1 408")
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
    assert exchange(server, head + b"{").startswith(b"HTTP/1.1 408")


def test_d02_a_hopeless_prompt_is_refused_before_tokenising(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(text: str, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError("tokenised")

    monkeypatch.setattr(server.serving.tokenizer, "encode", encode)
    text = "a b " * 1_000_000
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/completions", {"prompt": ["x" * 10**6, "y"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("/tokenize", {"prompt": text}),
        ("/generate", {"prompt": text}),
    ):
        answer = server.post(path, body)
        assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
        assert "at least" in answer.error["message"]


VALUES: list[Any] = [
    None, "", 0, -1, 10**400, [], {}, True, False, "NaN", 10**30, [[]], {"a": {"b": [1]}}, 1.5,
    "x" * 100, [None], [{}], ["a", 1], 2**63, -(2**63) - 1, "\u0000", "1", 1e308, [[[1]]],
]  # fmt: skip
FIELDS = (
    "model", "prompt", "messages", "n", "best_of", "temperature", "top_k", "top_p", "min_p",
    "stop", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed",
    "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
    "prompt_logprobs", "skip_special_tokens", "stream", "priority", "stream_options", "echo",
    "service_tier",
    "add_special_tokens", "logprobs", "top_logprobs", "suffix", "response_format", "user",
    "max_completion_tokens", "tools", "tool_choice", "chat_template", "chat_template_kwargs",
    "tokens", "add_generation_prompt", "continue_final_message", "modalities", "functions",
)  # fmt: skip
PATHS = ("/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize")


def _sound(answer: Answer, case: Any) -> None:
    assert answer.status in (200, 400, 404), case
    if answer.status != 200:
        assert len(answer.body) < 3000 and "Traceback" not in answer.error["message"], case


def test_d14_every_field_with_every_wrong_value(server: LiveServer) -> None:
    for path in PATHS:
        for field in FIELDS:
            values = random.Random(f"{path}{field}").sample(VALUES, 6)
            for value in values:
                body = {"prompt": "x", **CHAT, "tokens": [1], "max_tokens": 2, field: value}
                if path == "/tokenize" and field != "prompt":
                    del body["prompt"]
                _sound(server.post(path, body), (path, field, value))
    assert server.post("/v1/completions", {"prompt": "x"}).status == 200


def test_d14_random_bodies(server: LiveServer) -> None:
    rng = random.Random(14)
    for case in range(400):
        body = {field: rng.choice(VALUES) for field in rng.sample(FIELDS, rng.randint(1, 5))}
        body |= {"prompt": "x"} if rng.random() < 0.7 else {}
        body |= CHAT if rng.random() < 0.7 else {}
        _sound(server.post(rng.choice(PATHS), body), (case, body))
    for message in (
        {"role": 1},
        {"role": "user", "content": 5},
        {"role": "user", "content": [5]},
        7,
    ):
        answer = server.post("/v1/chat/completions", {"messages": [message]})
        assert answer.status == 400 and answer.error["param"].startswith("messages")
    assert server.post("/v1/completions", {"prompt": "x"}).status == 200
