"""A whole measurement: workloads, repeats, one server or two in turns.

Owns: the order of the runs, warming up, fresh salts, what each run's result is made of.
Does not know: command lines, files, tables.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.load.client import Api, Outcome, ask
from octavo.bench.load.counters import prefix_cache, warmth, with_model
from octavo.bench.load.figures import Figures, medians, ratios, summarize
from octavo.bench.load.prompts import random_prompts, salt
from octavo.bench.load.runner import run
from octavo.bench.load.workload import Item, Workload, shared_share

BUSY = 0.8
"""Share of a processor from which on the client may be what is measured ..."""
BRIEF = 1.0
"""... if a run is longer than so many seconds: a short one is all beginning."""


class Unreachable(Exception):
    """A server does not answer even one request."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`servers` by name, one or two. `salted`: each run puts words of its own before its prompts,
    so that no run finds what an earlier one left in a prefix cache; costs about three tokens."""

    servers: dict[str, Api]
    workloads: Sequence[Workload]
    repeats: int = 1
    concurrency: int | None = None
    seed: int = 0
    salted: bool = True
    warm_up: int = 1


@dataclass(slots=True)
class Session:
    """`runs`: figures of each run, in order, with "server", "repeat" and "warnings". `outcomes`:
    the requests behind each."""

    runs: list[Figures] = field(default_factory=list)
    outcomes: list[list[Outcome]] = field(default_factory=list)
    interrupted: bool = False

    def medians(self) -> dict[str, dict[str, Figures]]:
        """By workload, then by server."""
        grouped: dict[str, dict[str, list[Figures]]] = {}
        for figures in self.runs:
            of_workload = grouped.setdefault(figures["workload"], {})
            of_workload.setdefault(figures["server"], []).append(figures)
        return {
            workload: {server: medians(runs) for server, runs in servers.items()}
            for workload, servers in grouped.items()
        }

    def ratios(self) -> dict[str, dict[str, float | None]]:
        """By workload: the first server over the second; empty for one server."""
        return {
            workload: ratios(*list(servers.values())[:2])
            for workload, servers in self.medians().items()
            if len(servers) > 1
        }

    def as_json(self, details: bool = False) -> dict[str, Any]:
        runs = [
            figures | ({"outcomes": [_detail(one) for one in outcomes]} if details else {})
            for figures, outcomes in zip(self.runs, self.outcomes, strict=True)
        ]
        return {
            "interrupted": self.interrupted,
            "medians": self.medians(),
            "ratios": self.ratios(),
            "runs": runs,
        }


def _detail(outcome: Outcome) -> dict[str, Any]:
    facts = dataclasses.asdict(outcome)
    del facts["arrivals"]
    return facts | {"ttft": outcome.ttft, "tpot": outcome.tpot, "chunks": len(outcome.arrivals)}


async def measure(plan: Plan, done: Callable[[Session], None] = lambda session: None) -> Session:
    """Runs everything; `done` is called after each run. Cancelling it is an interrupt: it returns
    what there is. Raises Unreachable before the first run."""
    session = Session()
    servers = {name: await with_model(api) for name, api in plan.servers.items()}
    try:
        for name, api in servers.items():
            await _warm_up(name, api, plan)
    except asyncio.CancelledError:
        session.interrupted = True
        return session
    number = 0
    for workload in plan.workloads:
        expected = shared_share([item.prompt for item in workload.items])
        for repeat in range(plan.repeats):
            # In turns, so that a machine that slows down slows down both.
            for name, api in servers.items():
                number += 1
                await _one_run(session, plan, workload, name, api, repeat, number, expected)
                done(session)
                if session.interrupted:
                    return session
    return session


async def _warm_up(name: str, api: Api, plan: Plan) -> None:
    """Requests that are no part of the data: their words come from another seed."""
    for prompt in random_prompts(~plan.seed, [32] * plan.warm_up):
        outcome = await ask(api, api.body(Item(prompt, 8)), 0.0, 0.0)
        if outcome.cancelled:
            raise asyncio.CancelledError
        if outcome.failure is not None:
            raise Unreachable(f"{name} does not answer: {outcome.failure}")


async def _one_run(
    session: Session,
    plan: Plan,
    workload: Workload,
    name: str,
    api: Api,
    repeat: int,
    number: int,
    expected: float,
) -> None:
    before = await prefix_cache(api)
    words = salt(plan.seed * 1_000_003 + number) if plan.salted else ""
    result = await run(api, workload, concurrency=plan.concurrency, salt=words)
    session.interrupted = result.interrupted
    figures = summarize(result)
    after = None if result.interrupted else await prefix_cache(api)
    cache = after.since(before) if before is not None and after is not None else None
    warnings = [warmth(cache, expected, workload.random)]
    if result.client_cpu > BUSY and result.seconds > BRIEF:
        warnings.append(
            f"the client took {result.client_cpu:.0%} of a processor: it may be what was measured"
        )
    figures |= {
        "server": name,
        "repeat": repeat,
        "prefix_cache": None
        if cache is None
        else {"queries": cache.queries, "hits": cache.hits, "hit_rate": cache.hit_rate,
              "expected": expected},
        "warnings": [one for one in warnings if one is not None],
    }  # fmt: skip
    session.runs.append(figures)
    session.outcomes.append(result.outcomes)
