"""Whole runs against scripted servers: loops, failures, warm caches, interrupts, two servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.bench.load.client import Api
from octavo.bench.load.http import Target
from octavo.bench.load.made import random_workload
from octavo.bench.load.runner import run
from octavo.bench.load.session import Plan, Session, Unreachable, measure
from octavo.bench.load.workload import Item, Workload
from support.live_server import until
from support.scripted_api import HEAD, LAST, Act, Pause, ScriptedApi, chunk, event, good, status


def api(server: ScriptedApi, **options: Any) -> Api:
    return Api(Target.parse(server.url), **options)


def slow(number: int, body: dict[str, Any]) -> list[Any]:
    return [Pause(0.05), *good(number, body)]


async def test_a_closed_loop_keeps_to_its_concurrency() -> None:
    with ScriptedApi(slow) as server:
        result = await run(api(server), random_workload(12, 16, 2, seed=1), concurrency=3)
        assert server.most == 3
    assert len(result.outcomes) == 12 and all(one.good for one in result.outcomes)
    assert result.seconds >= 4 * 0.05


async def test_all_at_once() -> None:
    with ScriptedApi(slow) as server:
        await run(api(server), random_workload(12, 16, 2, seed=1))
        assert server.most > 3


async def test_an_open_loop_keeps_to_its_times() -> None:
    times = [0.3, 0.0, 0.15]
    items = tuple(Item(f"prompt {at}", 2, at) for at in times)
    with ScriptedApi(slow) as server:
        result = await run(api(server), Workload("w", items))
        sent = [body["prompt"] for body in server.bodies]
    assert sent == ["prompt 0.0", "prompt 0.15", "prompt 0.3"]
    assert all(one.sent >= one.due for one in result.outcomes)
    assert sorted(one.due for one in result.outcomes) == sorted(times)
    assert result.late >= 0


BAD = {
    3: [status(500, "boom")],
    7: [HEAD, event({"error": {"message": "died"}}), LAST],
    11: [HEAD, LAST],
    15: [HEAD, Act.RESET],
    19: [Act.STALL],
}


async def test_g03_bad_answers_are_counted_by_reason_and_left_out() -> None:
    with ScriptedApi(lambda number, body: BAD.get(number - 1) or good(number, body)) as server:
        plan = Plan({"server": api(server, timeout=1.0)}, [random_workload(50, 16, 3, seed=1)])
        session = await measure(plan)
    figures = session.runs[0]
    assert (figures["succeeded"], figures["failed"]) == (45, 5)
    assert sum(figures["failures"].values()) == 5 and len(figures["failures"]) == 5
    assert {reason.split(":")[0] for reason in figures["failures"]} >= {
        "status 500",
        "error event",
        "an empty stream",
        "not done after 1 s (no tokens)",
    }
    assert figures["output_tokens"] == 45 * 3
    assert figures["ttft_ms"]["max"] < 1000  # the stalled one is in no latency


class CountingServer:
    """A prefix cache of whole prompts, which never forgets."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.queries = self.hits = 0

    def answer(self, number: int, body: dict[str, Any]) -> list[bytes]:
        tokens = len(body["prompt"].split())
        self.queries += tokens
        self.hits += tokens if body["prompt"] in self.known else 0
        self.known.add(body["prompt"])
        return good(number, body)

    def metrics(self) -> str:
        return (
            f"octavo:prefix_cache_queries_total {self.queries}\n"
            f"octavo:prefix_cache_hits_total {self.hits}\n"
        )


async def test_g01_the_same_seed_twice_meets_a_warm_cache_and_says_so() -> None:
    cache = CountingServer()
    with ScriptedApi(cache.answer, cache.metrics) as server:
        plan = Plan(
            {"server": api(server)}, [random_workload(20, 32, 2, seed=5)], seed=5, salted=False
        )
        first, second = await measure(plan), await measure(plan)
        salted = Plan(plan.servers, plan.workloads, repeats=2, seed=6)
        third = await measure(salted)
    assert first.runs[0]["prefix_cache"]["hit_rate"] == 0 and not first.runs[0]["warnings"]
    assert second.runs[0]["prefix_cache"]["hit_rate"] == 1
    assert "the prefix cache was warm: 100.0%" in second.runs[0]["warnings"][0]
    assert [figures["prefix_cache"]["hits"] for figures in third.runs] == [0, 0]
    prompts = [body["prompt"] for body in server.bodies]
    # The first request of a session warms up, and is no part of its data.
    assert prompts[0] not in prompts[1:21] and len(set(prompts[1:21])) == 20
    assert first.runs[0]["prompt_tokens"] == 20 * 32


async def test_a_server_without_counters_gives_no_hit_rate() -> None:
    with ScriptedApi() as server:
        session = await measure(Plan({"server": api(server)}, [random_workload(2, 8, 2, seed=1)]))
    assert session.runs[0]["prefix_cache"] is None and session.runs[0]["warnings"] == []


async def test_two_servers_run_in_turns() -> None:
    order: list[str] = []

    def named(name: str, pause: float) -> Any:
        def answer(number: int, body: dict[str, Any]) -> list[Any]:
            order.append(name)
            return [Pause(pause), *good(number, body)]

        return answer

    with ScriptedApi(named("a", 0.0)) as one, ScriptedApi(named("b", 0.2)) as other:
        servers = {"server": api(one), "against": api(other)}
        plan = Plan(servers, [random_workload(2, 8, 2, seed=1)], repeats=2, warm_up=0)
        session = await measure(plan)
    assert order == ["a", "a", "b", "b"] * 2
    assert one.bodies[0]["model"] == "scripted"  # the first that the server lists
    found = session.ratios()["random"]
    assert found["output_tokens_per_s"] is not None and found["output_tokens_per_s"] > 1
    assert found["ttft_ms"] is not None and found["ttft_ms"] < 1
    assert session.medians()["random"]["server"]["runs"] == 2


async def test_g03_an_interrupt_keeps_what_has_ended() -> None:
    def answer(number: int, body: dict[str, Any]) -> list[Any]:
        return good(number, body) if number < 6 else [HEAD, chunk(b": beat\n\n"), Act.STALL]

    kept: list[Session] = []
    with ScriptedApi(answer) as server:
        workloads = [random_workload(9, 8, 2, seed=1)]
        # Four places: when the last of nine is sent, five have ended, which are all that will.
        plan = Plan({"server": api(server)}, workloads, repeats=3, concurrency=4)
        task = asyncio.create_task(measure(plan, kept.append))
        await asyncio.to_thread(until, lambda: len(server.bodies) == 10, "all are sent")
        task.cancel()
        session = await task
    figures = session.runs[0]
    assert session.interrupted and figures["interrupted"] and len(session.runs) == 1
    assert kept == [session]
    assert figures["succeeded"] == 5 and figures["failed"] == 0
    assert figures["unfinished"] == 4
    assert session.as_json(details=True)["runs"][0]["outcomes"][0]["output_tokens"] == 2


async def test_a_server_that_does_not_answer_at_all() -> None:
    with ScriptedApi(lambda number, body: [status(401, "no key")]) as server:
        plan = Plan({"server": api(server)}, [random_workload(2, 8, 2, seed=1)])
        with pytest.raises(Unreachable, match="server does not answer: status 401: no key"):
            await measure(plan)
