"""One request against a scripted server: what is counted, and what is a failure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from octavo.bench.load.client import Api, Outcome, ask
from octavo.bench.load.http import Target
from octavo.bench.load.workload import Item
from support.scripted_api import (
    DONE,
    HEAD,
    LAST,
    Act,
    Pause,
    ScriptedApi,
    chunk,
    event,
    status,
    text,
    usage,
)

ITEM = Item("one two three", 4)


async def asked(pieces: Iterable[Any], **options: Any) -> Outcome:
    with ScriptedApi(lambda number, body: pieces) as server:
        api = Api(Target.parse(server.url), **options)
        return await ask(api, api.body(ITEM), 0.0, 0.0)


async def test_a_good_stream() -> None:
    with ScriptedApi() as server:
        api = Api(Target.parse(server.url), model="m", api_key="k")
        outcome = await ask(api, api.body(ITEM, "salt "), 0.0, 0.0)
    assert outcome.failure is None and outcome.good
    assert (outcome.prompt_tokens, outcome.output_tokens) == (4, 4)
    assert len(outcome.arrivals) == 4 and len(list(outcome.gaps)) == 3
    assert outcome.sent < outcome.arrivals[0] <= outcome.last <= outcome.ended
    body = server.bodies[0]
    assert body["prompt"] == "salt one two three" and body["model"] == "m"
    assert body["temperature"] == 0 and body["ignore_eos"] and body["stream"]
    assert body["stream_options"] == {"include_usage": True} and body["max_tokens"] == 4


async def test_g02_tokens_come_from_usage_and_not_from_text() -> None:
    """100 tokens of one space each, which any tokenizer would count as fewer."""
    outcome = await asked(
        [HEAD, *[text(" ") for _ in range(99)], text(" ", "length"), usage(3, 100), LAST]
    )
    assert outcome.failure is None
    assert outcome.output_tokens == 100 and len(outcome.arrivals) == 100


async def test_g02_an_early_end_counts_what_was_generated() -> None:
    outcome = await asked([HEAD, text("a"), text("b", "stop"), usage(3, 2), chunk(DONE), LAST])
    assert outcome.good and outcome.output_tokens == 2
    assert outcome.tpot == pytest.approx(outcome.last - outcome.arrivals[0])


async def test_g02_a_single_token_has_no_tpot() -> None:
    outcome = await asked([HEAD, text("a", "length"), usage(3, 1), chunk(DONE), LAST])
    assert outcome.good and outcome.ttft is not None and outcome.tpot is None
    assert list(outcome.gaps) == []


async def test_g02_a_chunk_with_only_a_role_is_no_token() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    said = event({"choices": [{"delta": {"content": "hi"}}]})
    end = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    with ScriptedApi(
        lambda n, b: [HEAD, role, Pause(0.2), said, end, usage(9, 1), chunk(DONE), LAST]
    ) as server:
        api = Api(Target.parse(server.url), chat=True)
        outcome = await ask(api, api.body(ITEM), 0.0, 0.0)
    assert outcome.good and len(outcome.arrivals) == 1
    assert outcome.ttft is not None and outcome.ttft >= 0.2
    assert server.bodies[0]["messages"] == [{"role": "user", "content": ITEM.prompt}]
    assert "prompt" not in server.bodies[0]


async def test_g02_several_tokens_in_a_chunk() -> None:
    """TPOT goes by tokens; the time after the last one is not counted."""
    pieces = [HEAD, text("a b"), Pause(0.2), text("c d", "length"), Pause(0.3), usage(3, 4), LAST]
    outcome = await asked(pieces)
    assert outcome.good and len(outcome.arrivals) == 2
    assert outcome.tpot is not None and 0.2 / 3 <= outcome.tpot < 0.5 / 3


async def test_events_that_are_cut_anywhere_and_comments() -> None:
    whole = b": beat\n\ndata: " + b'{"choices": [{"text": "\\u00e9"}]}' + b"\r\n\r\n"
    whole += b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'
    whole += b'data:{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}\n\n'
    parts = [chunk(whole[i : i + 1]) for i in range(len(whole))]
    outcome = await asked([HEAD, *parts, chunk(DONE), LAST])
    assert outcome.good and outcome.output_tokens == 2 and len(outcome.arrivals) == 1


async def test_a_body_that_ends_with_its_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    said = b'data: {"choices": [{"text": "a", "finish_reason": "length"}], '
    said += b'"usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n\n' + DONE
    outcome = await asked([head, said, Act.CLOSE])
    assert outcome.good


FAILURES: list[tuple[list[Any], str]] = [
    ([status(500, "boom")], "status 500: boom"),
    ([status(429, "busy")], "status 429: busy"),
    ([b"HTTP/1.1 502 X\r\ncontent-length: 4\r\n\r\noops"], "status 502: oops"),
    ([HEAD, event({"error": {"message": "died"}}), LAST], "error event: died"),
    (
        [HEAD, text("a"), event({"error": {"message": "died"}}), chunk(DONE), LAST],
        "error event: died",
    ),
    ([HEAD, LAST], "an empty stream"),
    ([HEAD, chunk(DONE), LAST], "an empty stream"),
    ([HEAD, text("a"), LAST], "the stream ended without a finish reason"),
    ([HEAD, text("a", "length"), chunk(DONE), LAST], "no usage in the stream"),
    ([HEAD, usage(3, 0), chunk(DONE), LAST], "no tokens were generated"),
    ([HEAD, chunk(b"data: {nonsense\n\n"), LAST], "an event that is not JSON"),
    ([HEAD, text("a"), Act.CLOSE], "connection closed before the end of the answer"),
    ([Act.CLOSE], "connection closed before the end of the answer"),
    ([HEAD, text("a"), Pause(0.1), Act.RESET], "connection lost: Connection reset by peer"),
    ([b"nonsense\r\n\r\n"], "not HTTP: "),
]


@pytest.mark.parametrize(("pieces", "told"), FAILURES, ids=lambda value: str(value)[:30])
async def test_g03_what_is_a_failure_and_why(pieces: list[Any], told: str) -> None:
    outcome = await asked(pieces)
    assert outcome.failure is not None and outcome.failure.startswith(told)
    assert not outcome.good and outcome.output_tokens == 0


@pytest.mark.parametrize(
    ("pieces", "told"), [([Act.STALL], "no tokens"), ([HEAD, text("a"), Act.STALL], "some tokens")]
)
async def test_g03_a_server_that_stalls(pieces: list[Any], told: str) -> None:
    outcome = await asked(pieces, timeout=0.3)
    assert outcome.failure == f"not done after 0.3 s ({told})"
    assert 0.3 <= outcome.e2e < 10


async def test_g03_nobody_listens() -> None:
    with ScriptedApi() as server:
        api = Api(Target.parse(server.url))
    outcome = await ask(api, api.body(ITEM), 0.0, 0.0)
    assert outcome.failure is not None and outcome.failure.startswith("cannot connect: ")


@pytest.mark.parametrize(
    ("url", "host", "port", "secure", "path"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000, False, ""),
        ("http://box/v1", "box", 80, False, ""),
        ("https://box:9/base/v1/", "box", 9, True, "/base"),
    ],
)
def test_addresses(url: str, host: str, port: int, secure: bool, path: str) -> None:
    target = Target.parse(url)
    assert (target.host, target.port, target.secure, target.path) == (host, port, secure, path)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "file:///etc"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="is not an http or https address"):
        Target.parse(url)
