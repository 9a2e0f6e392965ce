"""The OpenAI routes over a scripted engine: forms of prompts, defaults, grammar, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.core.plan import TokenLogprob
from octavo.core.request import Output, Refused
from support.fake_engine import FakeEngine, FakeStream
from support.live_server import LiveServer
from support.tiny_tokenizer import BOS, EOS

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def script(fake: FakeEngine, text: str) -> None:
    fake.script = list(text.encode())


def test_completion(server: LiveServer, fake: FakeEngine) -> None:
    script(fake, "Hi there")
    fake.cached = 2
    answer = server.post("/v1/completions", {"prompt": "abc", "model": "tiny"})
    body = answer.json()
    assert body["choices"] == [
        {
            "index": 0,
            "text": "Hi there",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["object"] == "text_completion" and body["model"] == "tiny"
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 9,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert fake.submissions[0].prompt == [BOS, *b"abc"]


@pytest.mark.parametrize("stream", [False, True])
def test_a01_stop_string_over_tokens(server: LiveServer, fake: FakeEngine, stream: bool) -> None:
    """Nothing of the stop string leaks, streamed or not, and the engine is told to stop."""
    script(fake, "ABCDEFGHIJKLM")
    body = {"prompt": "x", "stop": ["DEFGHIJ"], "stream": stream}
    answer = server.post("/v1/completions", body)
    if stream:
        events = answer.events()
        assert events.pop() == "[DONE]"
        text = "".join(event["choices"][0]["text"] for event in events)
        last = events[-1]["choices"][0]
    else:
        last = answer.json()["choices"][0]
        text = last["text"]
        assert answer.json()["usage"]["completion_tokens"] == 10
    assert text == "ABC"
    assert last["finish_reason"] == "stop" and last["stop_reason"] == "DEFGHIJ"
    assert not fake.live, "the choice still runs in the engine"


def test_a01_stop_string_included(server: LiveServer, fake: FakeEngine) -> None:
    script(fake, "ABCDEF")
    body = {"prompt": "x", "stop": "CD", "include_stop_str_in_output": True}
    assert server.post("/v1/completions", body).json()["choices"][0]["text"] == "ABCD"


@pytest.mark.parametrize("chat", [False, True])
def test_a03_no_broken_characters(server: LiveServer, fake: FakeEngine, chat: bool) -> None:
    text = "Hi 😀 日本 é"
    script(fake, text)
    body: dict[str, Any] = {"stream": True}
    if chat:
        body |= {**CHAT, "logprobs": True}
    else:
        body |= {"prompt": "x", "logprobs": 0}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    answer = server.post(path, body)
    choices = [event["choices"][0] for event in answer.events()[:-1]]
    pieces = [one["delta"].get("content", "") if chat else one["text"] for one in choices]
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)
    if chat:
        raw = [
            entry["bytes"]
            for one in choices
            for entry in (one["logprobs"] or {"content": []})["content"]
        ]
        assert b"".join(map(bytes, raw[:-1])) == text.encode()
    else:
        tokens = [token for one in choices for token in one["logprobs"]["tokens"]]
        assert "bytes:\\xf0" in tokens


def test_a05_usage_only_on_demand(server: LiveServer) -> None:
    def events(**options: Any) -> list[Any]:
        answer = server.post("/v1/chat/completions", {**CHAT, "stream": True, **options})
        assert answer.status == 200
        return answer.events()

    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        assert all(event["choices"] for event in events(**options)[:-1])
    *before, last, done = events(stream_options={"include_usage": True})
    assert done == "[DONE]" and last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 3
    assert all(event["choices"] and event["usage"] is None for event in before)
    refused = server.post("/v1/chat/completions", {**CHAT, "stream_options": {}})
    assert refused.status == 400 and refused.error["param"] == "stream_options"


def test_a07_chunk_grammar(server: LiveServer, fake: FakeEngine) -> None:
    script(fake, "ABCDEFG")
    answer = server.post(
        "/v1/chat/completions", {**CHAT, "stream": True, "n": 3, "max_tokens": 5, "stop": "Z"}
    )
    *events, done = answer.events()
    assert done == "[DONE]"
    assert len({(event["id"], event["created"]) for event in events}) == 1
    for index in range(3):
        choices = [one for event in events for one in event["choices"] if one["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("finish_reason" in one for one in choices)
        reasons = [one["finish_reason"] for one in choices]
        assert reasons[-1] == "length" and not any(reasons[:-1])
        assert "".join(one["delta"].get("content", "") for one in choices) == "ABCDE"


def test_a08_logprob_schemas(server: LiveServer, fake: FakeEngine) -> None:
    chat = server.post("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1})
    first = chat.json()["choices"][0]["logprobs"]["content"][0]
    top = {"token": "H", "logprob": -0.5, "bytes": [72]}
    assert first == {**top, "top_logprobs": [top]}
    none = server.post("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 0})
    assert none.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    alone = server.post("/v1/chat/completions", {**CHAT, "top_logprobs": 2})
    assert alone.status == 400 and alone.error["param"] == "top_logprobs"
    plain = server.post("/v1/completions", {"prompt": "x", "logprobs": 1})
    logprobs = plain.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["H", "i", "<|eos|>"] and logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["top_logprobs"] == [{"H": -0.5}, {"i": -0.5}, {"<|eos|>": -0.5}]


@pytest.mark.parametrize("logprob", [float("-inf"), float("nan"), -1e30])
def test_a09_logprobs_are_finite(server: LiveServer, fake: FakeEngine, logprob: float) -> None:
    fake.logprob = logprob
    body = {"prompt": "ab", "logprobs": 5, "echo": True}
    logprobs = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, *[-9999.0] * 5]
    chat = server.post("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 20})
    assert chat.json()["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a10_echo_with_logprobs(server: LiveServer, fake: FakeEngine, max_tokens: int) -> None:
    prompts = [[1, 2, 3], [4], [5, 6], [7, 8]]
    body = {"prompt": prompts, "max_tokens": max_tokens, "echo": True, "logprobs": 1}
    answer = server.post("/v1/completions", body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        logprobs = choice["logprobs"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert len(logprobs[name]) == len(prompt) + max_tokens
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert choice["text"] == bytes(prompt).decode() + "H" * max_tokens
        assert choice["finish_reason"] == "length"
    assert (
        server.post("/v1/completions", {"prompt": "x", "max_tokens": 0}).json()["choices"][0][
            "text"
        ]
        == ""
    )


def test_a12_empty_prompts(server: LiveServer, fake: FakeEngine) -> None:
    """With a BOS an empty text begins from it; nothing to begin from is refused as a whole."""
    for prompt in ("", [""], ["ok", ""]):
        assert server.post("/v1/completions", {"prompt": prompt}).status == 200
    for prompt in ([], [[]], None, [[1], []]):
        answer = server.post("/v1/completions", {"prompt": prompt})
        assert answer.status == 400 and answer.error["param"].startswith("prompt")
    for content in ("", [{"type": "text", "text": ""}]):
        body = {"messages": [{"role": "user", "content": content}]}
        assert server.post("/v1/chat/completions", body).status == 200
    for messages in ([], [{"role": "user", "content": None}], [{"role": "user"}]):
        answer = server.post("/v1/chat/completions", {"messages": messages})
        assert answer.status == 400 and answer.error["param"].startswith("messages")
    assert not fake.live and server.post("/v1/completions", {"prompt": "x"}).status == 200


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 99999999],
        [-1],
        [5279552648203111001],
        [10**30],
        [1.5],
        [True],
        [[1], "a"],
        [[1, "a"]],
    ],
)
def test_a13_bad_ids(server: LiveServer, fake: FakeEngine, prompt: Any) -> None:
    answer = server.post("/v1/completions", {"prompt": prompt})
    assert answer.status == 400 and answer.error["param"].startswith("prompt")
    assert not fake.submissions
    tokens = server.post("/detokenize", {"tokens": prompt})
    assert tokens.status == 400 and tokens.error["param"].startswith("tokens")


def test_a13_choices_run_prompt_major(server: LiveServer, fake: FakeEngine) -> None:
    for prompt in ([[1, 2], [3]], ["a", "b"]):
        body = {"prompt": prompt, "n": 2, "seed": 7}
        choices = server.post("/v1/completions", body).json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [s.prompt for s in fake.submissions] == [[1, 2], [3], [BOS, 97], [BOS, 98]]
    assert {s.seed for s in fake.submissions} == {7}


def test_a15_unknown_and_newer_fields(server: LiveServer, fake: FakeEngine) -> None:
    answer = server.post(
        "/v1/chat/completions",
        {
            "messages": [{"role": "developer", "content": "d", "id": "1", "name": "n", "zz": {}}],
            "max_completion_tokens": 5, "max_tokens": 3, "user": "u", "metadata": {},
            "store": False, "parallel_tool_calls": True, "service_tier": "auto",
            "reasoning_effort": "low", "foo": 1, "temprature": 0.5,
        },
    )  # fmt: skip
    assert answer.status == 200
    warning = answer.headers["octavo-warning"]
    assert "foo" in warning and "temprature (did you mean temperature?)" in warning
    assert "user" not in warning and "store" not in warning
    assert fake.submissions[0].params.max_tokens == 5
    bad = server.post("/v1/chat/completions", {**CHAT, "max_completion_tokens": -5})
    assert bad.status == 400 and bad.error["param"] == "max_completion_tokens"


def test_a16_content_parts(server: LiveServer, fake: FakeEngine) -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    messages: list[Any] = [
        {"role": "system", "content": parts},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": parts, "tool_call_id": "c"},
    ]
    assert server.post("/v1/chat/completions", {"messages": messages}).status == 200
    prompt = server.serving.tokenizer.decode(fake.submissions[0].prompt, skip_special_tokens=False)
    assert prompt.count("A\nB") == 3
    image = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": image}]})
    assert answer.status == 400 and answer.error["param"] == "messages[0].content[0]"


def test_a23_context(server: LiveServer, fake: FakeEngine) -> None:
    """The context is 128 tokens."""

    def complete(tokens: int, **fields: Any) -> Any:
        return server.post("/v1/completions", {"prompt": [1] * tokens, **fields})

    assert complete(127).status == 200 and fake.submissions[-1].params.max_tokens == 1
    assert complete(100).status == 200 and fake.submissions[-1].params.max_tokens == 28
    assert complete(100, max_tokens=28).status == 200
    for tokens, fields in ((128, {}), (129, {}), (500, {}), (100, {"max_tokens": 29})):
        answer = complete(tokens, **fields)
        assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
        message = answer.error["message"]
        assert "128" in message and str(tokens) in message and "-" not in message
    huge = complete(10, max_tokens=10**30)
    assert huge.status == 400 and huge.error["code"] == "context_length_exceeded"


def test_a25_failure_within_a_stream(server: LiveServer, fake: FakeEngine) -> None:
    script(fake, "ABCDEF")
    fake.fail_at = 3
    answer = server.post("/v1/chat/completions", {**CHAT, "stream": True})
    *events, error = answer.events()
    assert answer.status == 200 and error["error"]["code"] == "row_failed"
    assert not any(event["choices"][0]["finish_reason"] for event in events)
    whole = server.post("/v1/chat/completions", CHAT)
    assert whole.status == 500 and whole.error["code"] == "row_failed"
    many = server.post("/v1/completions", {"prompt": ["a", "b"]})
    assert many.status == 500 and not fake.live
    fake.fail_at = None
    zero = server.post("/v1/chat/completions", {**CHAT, "stream": True, "n": 0})
    assert zero.status == 400 and zero.error["param"] == "n"


def test_refusals_before_a_stream_are_plain_errors(server: LiveServer, fake: FakeEngine) -> None:
    fake.refuse = Refused("4,096 requests wait", "queue_full", retry_after=2.4)
    for body in (CHAT, {**CHAT, "stream": True}):
        answer = server.post("/v1/chat/completions", body)
        assert answer.status == 429 and answer.headers["retry-after"] == "3"
        assert answer.error["type"] == "rate_limit_error" and answer.error["code"] == "queue_full"
    fake.refuse = Refused("shutting down", "draining", retry_after=5)
    assert server.post("/v1/completions", {"prompt": ["a", "b"]}).status == 503


def test_e07_defaults_of_the_model(start: Any, fake: FakeEngine) -> None:
    """Explicit before generation_config before built-in; null is no value."""
    defaults = {"temperature": 0.1, "top_p": 0.8, "top_k": 5, "repetition_penalty": 1.1}
    server = start(fake, defaults=defaults)
    server.post("/v1/completions", {"prompt": "x", "top_p": None})
    server.post("/v1/completions", {"prompt": "x", "temperature": 1, "top_k": 0})
    first, second = (submission.params for submission in fake.submissions)
    assert (first.temperature, first.top_p, first.top_k) == (0.1, 0.8, 5)
    assert (second.temperature, second.top_k, second.repetition_penalty) == (1, 0, 1.1)
    assert server.get("/v1/models").json()["data"][0]["sampling_defaults"] == defaults


def test_all_parameters_arrive(server: LiveServer, fake: FakeEngine) -> None:
    body = {
        "prompt": "x", "n": 1, "best_of": 3, "temperature": 0.5, "top_k": 10**30, "top_p": 0.9,
        "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4,
        "logit_bias": {"5": -100, "6": 1.5}, "seed": 11, "max_tokens": 9, "min_tokens": 2,
        "stop": ["a", "b"], "stop_token_ids": [7], "ignore_eos": True, "skip_special_tokens": False,
        "priority": -3,
    }  # fmt: skip
    answer = server.post("/v1/completions", body)
    submission = fake.submissions[0]
    params = submission.params
    assert submission.priority == -3 and submission.seed == 11
    assert params.logit_bias == {5: -100, 6: 1.5} and params.stop == ("a", "b")
    assert params.stop_token_ids == (7,) and params.top_k == 0 and params.ignore_eos
    assert (params.min_p, params.min_tokens, params.max_tokens) == (0.1, 2, 9)
    assert (params.repetition_penalty, params.presence_penalty) == (1.2, 0.3)
    assert len(answer.json()["choices"]) == 1
    assert answer.json()["usage"]["completion_tokens"] == 9, "all three choices count"
    streamed = server.post("/v1/completions", {**body, "stream": True})
    assert streamed.status == 400 and streamed.error["param"] == "best_of"


class MergedStream(FakeStream):
    """Choice 0 says "x!" and a very unlikely token, choice 1 the less likely "y!" and a likely one:
    all at once, as for a reader that was slow."""

    async def _run(self) -> AsyncIterator[Output]:
        for choice, logprobs in enumerate(((-1.0, -1.0, -50.0), (-2.0, -2.0, 0.0))):
            tokens = [ord("xy"[choice]), ord("!"), ord("b")]
            entries = [TokenLogprob(t, p, 1, []) for t, p in zip(tokens, logprobs, strict=True)]
            asked = self.submission.params.logprobs is not None
            yield Output(
                self.submission.request_id, choice, tokens=tokens,
                logprobs=entries if asked else None, cumulative_logprob=sum(logprobs),
            )  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
@pytest.mark.parametrize("asked", [False, True])
def test_best_of_does_not_weigh_what_lies_beyond_a_stop_string(
    server: LiveServer, fake: FakeEngine, path: str, asked: bool
) -> None:
    fake.stream_type = MergedStream
    body: dict[str, Any] = {"best_of": 2, "stop": "!", "max_tokens": 9}
    body.update(CHAT if "chat" in path else {"prompt": "p"})
    if asked and path != "/generate":
        body["logprobs"] = True if "chat" in path else 0
    answer = server.post(path, body).json()
    if path == "/generate":
        assert answer == {"text": ["px"]}
        return
    (choice,) = answer["choices"]
    assert (choice["message"]["content"] if "chat" in path else choice["text"]) == "x"
    assert (choice["logprobs"] is not None) is asked
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat", {"tools": [{"type": "function"}]}, "tools"),
        ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat", {"chat_template": "{{ 1 }}"}, "chat_template"),
        ("chat", {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ("chat", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("chat", {"messages": "x"}, "messages"),
        ("text", {"suffix": "x"}, "suffix"),
        ("text", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("text", {"logit_bias": {"x": 1}}, "logit_bias"),
        ("text", {"priority": "high"}, "priority"),
        ("text", {"priority": 2**40}, "priority"),
        ("text", {"temperature": "0.5"}, "temperature"),
        ("text", {"min_tokens": 500}, "min_tokens"),
    ],
)
def test_refused_by_name(server: LiveServer, path: str, fields: Any, param: str) -> None:
    route = "/v1/chat/completions" if path == "chat" else "/v1/completions"
    answer = server.post(route, {**(CHAT if path == "chat" else {"prompt": "x"}), **fields})
    assert answer.status == 400 and answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"


def test_no_template(start: Any, fake: FakeEngine) -> None:
    server = start(fake, template=None)
    answer = server.post("/v1/chat/completions", CHAT)
    assert answer.status == 400 and "--chat-template" in answer.error["message"]
    assert server.post("/v1/completions", {"prompt": "x"}).status == 200


def test_models_and_unknown_routes(server: LiveServer) -> None:
    card = server.get("/v1/models").json()["data"][0]
    assert card["id"] == "tiny" and card["max_model_len"] == 128
    assert server.get("/v1/models/tiny").json()["id"] == "tiny"
    for answer in (
        server.get("/v1/models/other/name"),
        server.post("/v1/completions", {"prompt": "x", "model": "gpt-4"}),
        server.get("/v1/nothing"),
        server.post("/v1/completions/", {"prompt": "x"}),
    ):
        assert answer.status == 404 and answer.error["message"]
    for named in ({}, {"model": None}, {"model": ""}, {"model": "tiny"}):
        assert server.post("/v1/completions", {"prompt": "x", **named}).status == 200, named
    wrong = server.get("/v1/completions")
    assert wrong.status == 405 and wrong.headers["allow"] == "POST" and wrong.error["message"]


def test_tokenize_and_back(server: LiveServer) -> None:
    body = {"prompt": "ab", "return_token_strs": True}
    answer = server.post("/tokenize", body).json()
    assert answer == {
        "count": 3, "max_model_len": 128, "tokens": [BOS, 97, 98],
        "token_strs": ["<|bos|>", "a", "b"],
    }  # fmt: skip
    plain = server.post("/tokenize", {"prompt": "ab", "add_special_tokens": False}).json()
    assert plain["tokens"] == [97, 98]
    chat = server.post("/tokenize", CHAT).json()
    assert chat["tokens"][0] == BOS and chat["tokens"].count(BOS) == 1
    twice = server.post("/tokenize", {**CHAT, "add_special_tokens": True}).json()
    assert twice["tokens"] == chat["tokens"], "never a second BOS"
    assert server.post("/detokenize", {"tokens": [97, 98, EOS]}).json()["prompt"] == "ab<|eos|>"
    for body in ({}, {**CHAT, "prompt": "x"}):
        assert server.post("/tokenize", body).status == 400


def test_generate_route(server: LiveServer, fake: FakeEngine) -> None:
    body = {"prompt": "say: ", "n": 2, "max_tokens": 8}
    assert server.post("/generate", body).json() == {"text": ["say: Hi", "say: Hi"]}
    lines = server.post("/generate", {**body, "stream": True}).body.splitlines()
    assert json.loads(lines[-1]) == {"text": ["say: Hi", "say: Hi"]}
    assert json.loads(lines[0]) == {"text": ["say: H", "say: "]}
    fake.fail_at = 1
    last = server.post("/generate", {**body, "stream": True}).body.splitlines()[-1]
    assert json.loads(last)["error"]["code"] == "row_failed"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_service_tier_names_the_class(server: LiveServer, fake: FakeEngine, path: str) -> None:
    body = {"prompt": "x"} if path == "/v1/completions" else CHAT
    tiers = {
        None: "realtime", "auto": "realtime", "default": "realtime", "priority": "realtime",
        "flex": "batch", "batch": "batch", "realtime": "realtime",
    }  # fmt: skip
    for tier in tiers:
        assert server.post(path, {**body, "service_tier": tier}).status == 200
    assert [s.service_class for s in fake.submissions] == list(tiers.values())
    wrong = server.post(path, {**body, "service_tier": "gold"})
    assert wrong.status == 400 and wrong.error["param"] == "service_tier"
    assert "'gold'" in wrong.error["message"] and "flex" in wrong.error["message"]


def test_a_proxys_header_counts_before_the_body(server: LiveServer, fake: FakeEngine) -> None:
    header = {"x-octavo-class": "Batch"}
    server.post("/v1/completions", {"prompt": "x", "service_tier": "priority"}, **header)
    server.post("/generate", {"prompt": "x"}, **header)
    server.post("/generate", {"prompt": "x"})
    assert [s.service_class for s in fake.submissions] == ["batch", "batch", "realtime"]
    found = server.get("/metrics").body.decode()
    for one, count in (("batch", 2), ("realtime", 1)):
        labels = f'model_name="tiny",service_class="{one}"'
        assert f"octavo:class_queue_time_seconds_count{{{labels}}} {count}.0" in found
    wrong = server.post("/v1/completions", {"prompt": "x"}, **{"x-octavo-class": "first"})
    assert wrong.status == 400 and wrong.error["param"] == "X-Octavo-Class"
