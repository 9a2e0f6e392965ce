"""Health, readiness, metrics and the page; the series and labels of metrics; request ids."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import random
import re
import string
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.health import EngineState
from octavo.engine.messages import EngineStats
from octavo.server.metrics import EngineView, Metrics, engine_values, metric_reference
from octavo.server.record import JsonFormatter, configure_logging
from support.fake_engine import FakeEngine
from support.live_server import LiveServer


@pytest.mark.parametrize(
    ("state", "health", "ready", "generates"),
    [
        (EngineState.READY, 200, 200, 200),
        (EngineState.LOADING, 200, 503, 503),
        (EngineState.RESTARTING, 200, 503, 200),
        (EngineState.DRAINING, 200, 503, 503),
        (EngineState.STUCK, 503, 503, 503),
        (EngineState.FAILED, 503, 503, 503),
    ],
)
def test_d01_what_each_state_answers(
    server: LiveServer,
    fake: FakeEngine,
    state: EngineState,
    health: int,
    ready: int,
    generates: int,
) -> None:
    """While the engine restarts requests are taken and wait: nobody gets a 5xx."""
    fake.state = state
    assert server.get("/health").status == health
    assert server.get("/health").json()["status"] == state.value
    assert server.get("/ready").status == ready
    answer = server.post("/v1/completions", {"prompt": "x"})
    assert answer.status == generates
    if generates == 503:
        assert answer.headers["retry-after"] and answer.error["code"] == state.value
        assert answer.error["type"] == "service_unavailable_error"


def test_the_page_is_whole_and_locked_down(server: LiveServer) -> None:
    answer = server.get("/")
    page = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == 1 and page.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r"\bon[a-z]+=|style=", page), "the policy forbids inline handlers"
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", page), "no outside resources"
    for name in ("kv_blocks_held", "kv_blocks_cached", "kv_blocks_total", "num_requests_running"):
        assert name in page and name in server.get("/stats").json()


def test_request_ids(server: LiveServer) -> None:
    assert server.get("/health", **{"x-request-id": "abc-1.2"}).headers["x-request-id"] == "abc-1.2"
    for bad in ("a" * 200, "a b", "é", "<script>"):
        given = server.request("GET", "/health", None, {"x-request-id": bad.encode("latin-1")})
        assert re.fullmatch("[0-9a-f]{32}", given.headers["x-request-id"])


def samples(server: LiveServer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = server.get("/metrics").body.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_f03_labels_do_not_grow_with_what_clients_send(server: LiveServer) -> None:
    rng = random.Random(3)

    def word() -> str:
        return "".join(rng.choices(string.ascii_letters, k=12))

    def noise(rounds: int) -> None:
        for _ in range(rounds):
            server.get(f"/{word()}/{word()}")
            server.get(f"/v1/models/{word()}")
            server.request(word().upper(), "/health")
            server.post("/v1/completions", {"prompt": "x", "model": word(), "user": word()})
            server.post("/v1/completions", {"prompt": "x", "user": word()})

    noise(5)
    samples(server)
    before = set(samples(server))
    noise(40)
    assert set(samples(server)) == before
    models = {dict(labels).get("model_name") for _, labels in before}
    assert models == {"tiny", None}
    handlers = {dict(labels).get("handler") for _, labels in before}
    assert {"unmatched", "/v1/models/{name:path}", "/v1/completions"} <= handlers


def test_f04_times_are_seconds_from_arrival(server: LiveServer, fake: FakeEngine) -> None:
    fake.script = [65] * 9
    fake.delay = 0.02
    for stream in (True, False) * 3:
        server.post("/v1/completions", {"prompt": "x", "stream": stream})
    server.post("/v1/completions", {"prompt": "x", "n": 3, "max_tokens": 0})
    found = {name: value for (name, _), value in samples(server).items()}

    def mean(name: str) -> float:
        return found[f"octavo:{name}_sum"] / found[f"octavo:{name}_count"]

    assert found["octavo:time_to_first_token_seconds_count"] == 6
    for name in ("e2e_request_latency", "request_queue_time"):
        assert found[f"octavo:{name}_seconds_count"] == 7
    assert found["octavo:inter_token_latency_seconds_count"] == 6 * 9
    assert 0.02 <= mean("time_to_first_token_seconds") < 0.2
    assert 0.02 <= mean("inter_token_latency_seconds") < 0.1
    assert found["octavo:e2e_request_latency_seconds_sum"] == pytest.approx(
        found["octavo:time_to_first_token_seconds_sum"]
        + found["octavo:inter_token_latency_seconds_sum"],
        rel=0.2,
    )
    assert found["octavo:request_generation_tokens_sum"] == 60
    assert found["octavo:request_prompt_tokens_sum"] == 14


def test_metrics_have_sane_names_and_buckets() -> None:
    metrics = Metrics("m", lambda: EngineView(None, 0, False))
    families = list(text_string_to_metric_families(metrics.scrape()[0].decode()))
    shown = {family.name for family in families}
    for name, kind, help in metric_reference():
        bare = name.removesuffix("_total")
        # A labelled family without a value yet has no samples, but is listed; durable batches are
        # counted only where there are any.
        absent = bare == "octavo:request_refused" or bare.startswith("octavo:batch")
        assert bare in shown or name in shown or absent, name
        assert help.endswith(".") and kind in ("counter", "gauge", "histogram")
    for family in families:
        if family.type != "histogram" or not family.name.endswith("_seconds"):
            continue
        bounds = sorted(
            float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels
        )
        if bounds:
            assert bounds[0] <= 0.001 and bounds[-2] >= 60


def test_the_engines_figures() -> None:
    stats = EngineStats(
        model="m", running=3, waiting=2, blocks_total=100, blocks_held=25, blocks_cached=5,
        block_size=4, slots_filled=90, logical_blocks=50, prompt_tokens_total=70,
        cached_tokens_total=7, preemptions_total=4, copies_total=6,
        running_by_class={"realtime": 1, "batch": 2}, waiting_by_class={"batch": 2},
        preemptions_by_total={"class/batch": 4}, batch_credit=-3,
        refused_total={"queue_full": 8},
    )  # fmt: skip
    values = engine_values(EngineView(stats, 9, True))
    assert values["kv_cache_usage_perc"][""] == 0.25
    stats.group_blocks = {"full": 80, "window 512": 20}
    stats.group_held = {"full": 15, "window 512": 10}
    grouped = engine_values(EngineView(stats, 9, True))
    assert grouped["kv_cache_usage_perc"][""] == 0.5, "the fullest group's"
    assert grouped["kv_group_held"] == {"full": 15.0, "window 512": 10.0}
    assert grouped["kv_group_blocks"] == {"full": 80.0, "window 512": 20.0}
    assert values["kv_slots_filled_ratio"][""] == 0.9 and values["kv_share_ratio"][""] == 2.0
    assert values["prefix_cache_queries"][""] == 70 and values["prefix_cache_hits"][""] == 7
    assert values["class_requests_running"] == {"realtime": 1.0, "batch": 2.0}
    assert values["class_requests_waiting"] == {"batch": 2.0}
    assert values["batch_credit_tokens"][""] == -3
    exposed, _ = Metrics("m", lambda: EngineView(stats, 9, True)).scrape()
    labels = 'cause="class",model_name="m",service_class="batch"'
    assert f"octavo:preemptions_by_cause_total{{{labels}}} 4.0" in exposed.decode()
    assert values["engine_restarts"][""] == 9 and values["request_refused"] == {"queue_full": 8.0}


def test_json_logs(server: LiveServer) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("octavo.access")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        server.post("/v1/completions", {"prompt": "x"}, **{"x-request-id": "one"})
        server.get("/health", **{"x-request-id": "two"})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["id"] for line in lines] == ["one"], "polls are not logged at info level"
    assert lines[0]["status"] == 200 and lines[0]["finish"] == "stop" and lines[0]["ttft"] >= 0
    assert lines[0]["level"] == "info" and "time" in lines[0]


def test_logging_is_configured_once(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("octavo")
    saved: Any = (logger.handlers, logger.level, logger.propagate)
    try:
        for format in ("text", "json", "json"):
            configure_logging("warning", format)
        logger.info("quiet")
        logger.error("loud")
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and json.loads(lines[0])["message"] == "loud"
    finally:
        logger.handlers, logger.level, logger.propagate = saved
