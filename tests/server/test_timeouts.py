"""A request's own deadline over HTTP, refusals under load, and requests of too many prompts."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.request import FinishReason, Output, Refused
from support.fake_engine import FakeEngine, FakeStream
from support.live_server import LiveServer
from support.tiny_models import tiny_random

CHAT = {"messages": [{"role": "user", "content": "x"}]}
ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "x"}),
          ("/generate", {"prompt": "x"})]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_the_field_and_the_header_and_the_shorter_of_both(
    server: LiveServer, fake: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    header = {"X-Request-Timeout": "7.5"}
    for fields, headers in (({}, {}), ({"timeout": 9}, {}), ({}, header), ({"timeout": 9}, header)):
        assert server.post(path, {**body, **fields}, **headers).status == 200
    assert [one.timeout for one in fake.submissions] == [None, 9.0, 7.5, 7.5]
    last = fake.submissions[-1]
    assert last.deadline == last.arrival + 7.5


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "86401", ""])
def test_bad_timeouts_are_named(server: LiveServer, fake: FakeEngine, value: str) -> None:
    answer = server.post("/v1/completions", {"prompt": "x"}, **{"X-Request-Timeout": value})
    assert answer.status == 400 and answer.error["param"] == "x-request-timeout"
    if value.lstrip("-").isdigit():
        answer = server.post("/v1/completions", {"prompt": "x", "timeout": int(value)})
        assert answer.status == 400 and answer.error["param"] == "timeout"
        assert "at most 86400 seconds" in answer.error["message"]
    assert not fake.submissions


class LateStream(FakeStream):
    """Ends at its deadline, after one token."""

    def _output(self, choice: int, step: int) -> Output:
        output = super()._output(choice, step)
        if step == 1:
            output.tokens, output.finish_reason = [], FinishReason.ERROR
            output.error, output.error_code = "not complete at its deadline", "deadline_exceeded"
        return output


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_late_answers_are_504_and_late_streams_end_with_an_error(
    server: LiveServer, fake: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    fake.stream_type = LateStream
    answer = server.post(path, {**body, "timeout": 5})
    assert answer.status == 504
    assert (answer.error["code"], answer.error["type"]) == ("deadline_exceeded", "timeout_error")
    stream = server.post(path, {**body, "timeout": 5, "stream": True})
    last = stream.body.split(b"\n\n" if path != "/generate" else b"\n")
    assert b'"code":"deadline_exceeded"' in last[-2] and b"[DONE]" not in stream.body
    assert not fake.live
    scrape = server.get("/metrics").body.decode()
    counted = 'octavo:request_deadline_exceeded_total{model_name="tiny",stage="running"} 2.0'
    assert counted in scrape


@pytest.mark.parametrize("code", ["queue_full", "queue_delay", "deadline_unreachable"])
def test_too_much_load_is_429_with_the_seconds(
    server: LiveServer, fake: FakeEngine, code: str
) -> None:
    fake.refuse = Refused("it would wait about 31.2 s", code, retry_after=17.0)
    for stream in (False, True):
        answer = server.post("/v1/completions", {"prompt": "x", "stream": stream})
        assert (answer.status, answer.error["code"]) == (429, code)
        assert answer.headers["retry-after"] == "17"
    fake.refuse = Refused("its time was over", "deadline_exceeded", "timeout")
    assert server.post("/v1/completions", {"prompt": "x"}).status == 504


def test_more_prompts_than_the_engine_can_ever_take(start: Any, fake: FakeEngine) -> None:
    """429 would tell the client to try again, for ever."""
    server = start(fake, max_requests=4, max_waiting_tokens=30)
    assert server.post("/v1/completions", {"prompt": ["x"] * 4}).status == 200
    answer = server.post("/v1/completions", {"prompt": ["x"] * 5})
    assert answer.status == 400 and answer.error["param"] == "prompt"
    assert "5 prompts; the engine can run and queue 4" in answer.error["message"]
    answer = server.post("/v1/completions", {"prompt": [[5] * 20, [6] * 20]})
    assert answer.status == 400 and "2 prompts have 40 tokens; 30 may" in answer.error["message"]
    assert server.post("/v1/completions", {"prompt": [5] * 40}).status == 200


def test_as_many_prompts_as_fit_are_taken_at_once(serve: Any) -> None:
    """The real engine: rows and queue together, in one request, and one more is named."""
    server = serve(tiny_random(), max_num_seqs=3, max_waiting_requests=2)
    body = {"max_tokens": 4, "ignore_eos": True}
    answer = server.post("/v1/completions", {**body, "prompt": ["a"] * 5})
    assert answer.status == 200, answer.body
    assert len(answer.json()["choices"]) == 5
    answer = server.post("/v1/completions", {**body, "prompt": ["a"] * 6})
    assert answer.status == 400 and "6 prompts; the engine can run and queue 5" in str(answer.error)
