"""The real engine on tiny models, asked by the real `openai` client over a real socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from support.live_server import LiveServer, until
from support.tiny_models import chain, loop, tiny_random
from support.tiny_tokenizer import BOS, VOCAB

Serve = Callable[..., LiveServer]
USER = [{"role": "user", "content": "tell me"}]


@pytest.fixture(scope="module")
def random_model(serve: Serve) -> LiveServer:
    """Row by row, so that logprobs too are the same in every batch."""
    return serve(tiny_random(peaked=True), row_at_a_time=True)


@pytest.fixture(scope="module")
def looping(serve: Serve) -> LiveServer:
    return serve(loop(), max_model_len=4000, kv_tokens=16384, block_size=16)


def client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def idle(server: LiveServer) -> None:
    """The leak oracle."""
    stats = server.serving.engine
    until(
        lambda: stats.stats.running == stats.stats.waiting == stats.stats.blocks_held == 0,
        "an idle engine",
    )
    now = stats.stats
    assert now.blocks_free + now.blocks_cached == now.blocks_total


def test_the_openai_client(random_model: LiveServer) -> None:
    """Chat and completions, streamed and not, say the same; the usage agrees."""
    with client(random_model) as api:
        assert [model.id for model in api.models.list()] == ["tiny"]
        ask: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 12, "n": 2}
        whole = api.chat.completions.create(**ask)
        texts, usage = ["", ""], None
        for chunk in api.chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == [choice.message.content for choice in whole.choices]
        assert texts[0] == texts[1], "greedy choices are equal"
        assert usage is not None and whole.usage is not None
        assert usage.completion_tokens == whole.usage.completion_tokens == 24
        assert usage.prompt_tokens == whole.usage.prompt_tokens

        plain = api.completions.create(model="tiny", prompt=["a", "bc"], max_tokens=6)
        parts = ["", ""]
        for chunk in api.completions.create(
            model="tiny", prompt=["a", "bc"], max_tokens=6, stream=True
        ):
            parts[chunk.choices[0].index] += chunk.choices[0].text
        assert parts == [choice.text for choice in plain.choices]
        with pytest.raises(openai.NotFoundError):
            api.chat.completions.create(model="gpt-4", messages=USER)
        with pytest.raises(openai.BadRequestError) as error:
            api.chat.completions.create(model="tiny", messages=USER, temperature=-1)
        assert error.value.param == "temperature"


def test_many_at_once_say_what_each_says_alone(random_model: LiveServer) -> None:
    """The async client with 24 streams, greedy and seeded, sharing prefixes."""

    async def ask(api: openai.AsyncOpenAI, i: int) -> str:
        text = ""
        stream = await api.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "shared " * 5 + "x" * i}],
            max_tokens=20, seed=i, temperature=float(i % 2), stream=True,
        )  # fmt: skip
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    async def run() -> None:
        url = f"{random_model.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as api:
            alone = [await ask(api, i) for i in range(24)]
            together = await asyncio.gather(*(ask(api, i) for i in range(24)))
            assert list(together) == alone and len(set(alone)) > 12

    asyncio.run(run())
    idle(random_model)


def test_a01_and_a07_on_a_scripted_model(serve: Serve) -> None:
    server = serve(chain(["ABC", "DEF", "G", "HI", "J", "KLM"]))
    with client(server) as api:
        for stop, text, reason in ((["DEFGHIJ"], "ABC", "stop"), (None, "ABCDEFGHIJKLM", "stop")):
            whole = api.completions.create(model="tiny", prompt="x", stop=stop, max_tokens=20)
            assert (whole.choices[0].text, whole.choices[0].finish_reason) == (text, reason)
            stream = api.completions.create(
                model="tiny", prompt="x", stop=stop, max_tokens=20, stream=True
            )
            assert "".join(chunk.choices[0].text for chunk in stream) == text
            reason = "DEFGHIJ" if stop else None
            assert whole.choices[0].model_extra["stop_reason"] == reason, "EOS is no reason"
        cut = api.completions.create(model="tiny", prompt="x", max_tokens=3)
        assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("ABCDEFG", "length")
        inside = api.completions.create(
            model="tiny", prompt="x", stop="FG", extra_body={"include_stop_str_in_output": True}
        )
        assert inside.choices[0].text == "ABCDEFG" and inside.usage is not None
        assert inside.usage.completion_tokens == 3
    idle(server)


def test_a03_characters_over_several_tokens(serve: Serve) -> None:
    text = "Hi 😀 日 é"
    raw = text.encode()
    pieces: list[bytes] = []
    for byte in raw:  # a token may come once: what comes again is joined to its neighbour
        if bytes([byte]) in pieces:
            pieces[-1] += bytes([byte])
        else:
            pieces.append(bytes([byte]))
    server = serve(chain(pieces))
    with client(server) as api:
        chunks = list(
            api.chat.completions.create(model="tiny", messages=USER, stream=True, logprobs=True)
        )
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(deltas) == text and not any("\ufffd" in delta for delta in deltas)
    entries = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert b"".join(bytes(e.bytes) for e in entries[:-1]) == raw, "the last one is EOS"


def spelt(server: LiveServer, token: int) -> str:
    raw = server.serving.tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def test_a08_and_a10_logprobs_agree_with_each_other(random_model: LiveServer) -> None:
    """What generation reports is what scoring the same text by echo reports."""
    with client(random_model) as api:
        prompt = [BOS, 1, 2, 3, 4, 5, 6, 7, 8]
        made = random_model.post(
            "/v1/completions",
            {"prompt": prompt, "max_tokens": 6, "logprobs": 3, "temperature": 0},
        ).json()["choices"][0]["logprobs"]
        sampled = made["token_logprobs"]
        chat = api.chat.completions.create(
            model="tiny", messages=USER, logprobs=True, top_logprobs=3, max_tokens=6
        )
        content = chat.choices[0].logprobs.content
        assert len(content) == 6 and all(len(entry.top_logprobs) == 3 for entry in content)
        assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in content)
        assert len({entry.logprob for entry in content}) > 1

        names = {spelt(random_model, token): token for token in range(VOCAB)}
        whole = [*prompt, *(names[token] for token in made["tokens"])]
        for max_tokens in (0, 1):
            scored = random_model.post(
                "/v1/completions",
                {"prompt": [whole, whole[:5]], "max_tokens": max_tokens, "echo": True,
                 "logprobs": 3, "temperature": 0},
            ).json()  # fmt: skip
            first, second = (choice["logprobs"] for choice in scored["choices"])
            assert len(first["tokens"]) == len(whole) + max_tokens
            assert len(second["tokens"]) == 5 + max_tokens
            assert first["token_logprobs"][0] is None
            values = first["token_logprobs"][len(prompt) : len(prompt) + 6]
            assert values == pytest.approx(sampled, abs=1e-4)
            assert [choice["finish_reason"] for choice in scored["choices"]] == ["length"] * 2
        assert scored["usage"]["prompt_tokens"] == len(whole) + 5
    idle(random_model)


def test_a10_echo_streams_the_same_for_every_choice(random_model: LiveServer) -> None:
    """Two prompts (one above the size that is written on the loop) with three choices each."""
    prompts = [list(range(240)), [BOS, 1, 2]]
    body = {
        "prompt": prompts, "n": 3, "max_tokens": 4, "echo": True, "logprobs": 20, "seed": 5,
        "temperature": 60.0, "ignore_eos": True,
    }  # fmt: skip
    whole = random_model.post("/v1/completions", body).json()["choices"]
    pieces: dict[int, list[dict[str, Any]]] = {index: [] for index in range(6)}
    streamed = random_model.post("/v1/completions", {**body, "stream": True})
    for chunk in streamed.events()[:-1]:
        pieces[chunk["choices"][0]["index"]].append(chunk["choices"][0])
    assert len({tuple(choice["logprobs"]["tokens"]) for choice in whole}) == 6
    for index, choice in enumerate(whole):
        prompt = prompts[index // 3]
        assert len(choice["logprobs"]["tokens"]) == len(prompt) + 4
        assert choice["text"] == "".join(piece["text"] for piece in pieces[index])
        for name, values in choice["logprobs"].items():
            parts = [piece["logprobs"][name] for piece in pieces[index]]
            assert [value for part in parts for value in part] == values, name
    scores = random_model.post(
        "/v1/completions", {"prompt": prompts, "n": 3, "max_tokens": 1, "prompt_logprobs": 20}
    ).json()["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in scores] == [240] * 3 + [3] * 3
    idle(random_model)


def test_a12_without_a_bos_an_empty_prompt_is_refused(serve: Serve) -> None:
    server = serve(tiny_random(bos=False))
    for prompt in ("", [""], ["ok", ""]):
        answer = server.post("/v1/completions", {"prompt": prompt})
        assert answer.status == 400 and answer.error["param"] == "prompt"
    assert server.post("/v1/completions", {"prompt": "ok", "max_tokens": 2}).status == 200
    idle(server)


def test_a09_masked_tokens_have_finite_logprobs(random_model: LiveServer) -> None:
    body = {
        "prompt": "correct horse", "logprobs": 5, "top_k": 1, "temperature": 1, "echo": True,
        "logit_bias": {"65": -100}, "max_tokens": 3,
    }  # fmt: skip
    logprobs = random_model.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])


def test_best_of_returns_the_likeliest(random_model: LiveServer) -> None:
    body = {"prompt": "go", "max_tokens": 8, "temperature": 2.0, "seed": 3, "logprobs": 0}
    all_of_them = random_model.post("/v1/completions", {**body, "n": 6}).json()["choices"]
    best = random_model.post("/v1/completions", {**body, "n": 2, "best_of": 6}).json()["choices"]
    sums = sorted((sum(c["logprobs"]["token_logprobs"]) for c in all_of_them), reverse=True)
    assert [sum(c["logprobs"]["token_logprobs"]) for c in best] == pytest.approx(sums[:2])


def test_a23_the_remaining_context_is_used(random_model: LiveServer) -> None:
    body = {"prompt": [5] * 500, "ignore_eos": True}
    answer = random_model.post("/v1/completions", body).json()
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["choices"][0]["finish_reason"] == "length"
    beyond = random_model.post("/v1/completions", {"prompt": [5] * 512})
    assert beyond.status == 400 and beyond.error["code"] == "context_length_exceeded"


def send(server: LiveServer, body: bytes) -> socket.socket:
    connection = server.raw()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_until(connection: socket.socket, wanted: bytes) -> None:
    got = b""
    while wanted not in got:
        more = connection.recv(65536)
        assert more, got
        got += more


ENDLESS = b'{"messages":[{"role":"user","content":"z"}],"max_tokens":3000,"ignore_eos":true%s}'


def test_c03_clients_that_go_away(looping: LiveServer) -> None:
    """Before the headers, after some chunks, not streamed, half a body: nothing goes on."""
    stream, whole = ENDLESS % b',"stream":true', ENDLESS % b""
    engine = looping.serving.engine
    for i in range(60):
        connection = send(looping, whole if i % 3 == 2 else stream)
        if i % 3 == 1:
            read_until(connection, b"chat.completion.chunk")
        connection.close()
    half = looping.raw()
    half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    half.close()
    waiting = send(looping, whole)
    until(lambda: engine.stats.running > 0, "a request that runs")
    waiting.close()
    idle(looping)
    reasons = looping.get("/metrics").body.decode()
    assert 'finished_reason="abort"' in reasons
    assert looping.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status == 200


def test_f01_gauges_fall_when_everybody_leaves(looping: LiveServer) -> None:
    connections = [send(looping, ENDLESS % b',"stream":true') for _ in range(40)]
    until(lambda: looping.serving.engine.stats.running >= 30, "many that run")
    for connection in connections:
        connection.close()
    idle(looping)
    text = looping.get("/metrics").body.decode()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f'octavo:{name}{{model_name="tiny"}} 0.0' in text


def test_d02_health_answers_under_load(looping: LiveServer) -> None:
    """Streams run and 20 MB prompts come in; /health is asked every 50 ms."""
    connections = [send(looping, ENDLESS % b',"stream":true') for _ in range(20)]
    slowest, stop = 0.0, threading.Event()

    def big() -> None:
        while not stop.is_set():
            answer = looping.post("/v1/completions", {"prompt": "a b " * 5_000_000})
            assert answer.status == 400

    thread = threading.Thread(target=big)
    thread.start()
    try:
        for _ in range(40):
            begin = time.monotonic()
            assert looping.get("/health").status == 200
            slowest = max(slowest, time.monotonic() - begin)
            stop.wait(0.05)
    finally:
        stop.set()
        thread.join()
        for connection in connections:
            connection.close()
    assert slowest < 1.0
    idle(looping)


def test_a25b_the_engine_dies_and_the_stream_goes_on(looping: LiveServer) -> None:
    """kill -9 of the engine process: /health stays 200, the stream ends as it would have."""
    engine: Any = looping.serving.engine
    pid = engine.pid
    body = {"prompt": "z", "max_tokens": 300, "ignore_eos": True, "stream": True}
    with client(looping) as api:
        text = ""
        for chunk in api.completions.create(
            model="tiny", prompt="z", max_tokens=300, stream=True, extra_body={"ignore_eos": True}
        ):
            text += chunk.choices[0].text
            if len(text) > 20 and engine.pid == pid:
                os.kill(pid, signal.SIGKILL)
                assert looping.get("/health").status == 200
        assert text == "z" * 300
    assert engine.health().restarts == 1 and body["max_tokens"] == 300
    metrics = looping.get("/metrics").body.decode()
    assert 'octavo:engine_restarts_total{model_name="tiny"} 1.0' in metrics
    idle(looping)


def test_d01c_a_stopped_engine_is_noticed(serve: Serve) -> None:
    server = serve(loop(), watchdog_timeout=1.0)
    engine: Any = server.serving.engine
    connection = send(server, ENDLESS.replace(b"3000", b"300") % b',"stream":true')
    read_until(connection, b"chat.completion.chunk")
    os.kill(engine.pid, signal.SIGSTOP)
    until(lambda: server.get("/health").status == 503, "health that tells of it")
    assert server.get("/ready").status == 503
    refused = server.post("/v1/completions", {"prompt": "x"})
    assert refused.status == 503 and refused.headers["retry-after"]
    until(lambda: server.get("/ready").status == 200, "another engine", 20.0)
    connection.close()
    idle(server)


def test_d04_only_one_port_listens(looping: LiveServer) -> None:
    """Nothing but HTTP can be reached: the engine has a socket pair."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]
    addresses = {address.split(":")[0] for address in listening}
    ports = {int(address.split(":")[1], 16) for address in listening}
    assert looping.port in ports and addresses == {"0100007F"}
