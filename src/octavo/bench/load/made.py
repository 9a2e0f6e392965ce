"""Workloads made from lengths, traces and rates.

Owns: putting prompts, lengths and times together.
Does not know: files of whole workloads (workload), or how requests are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from octavo.bench.load.arrivals import poisson, scaled
from octavo.bench.load.prompts import block_prompt, random_prompts
from octavo.bench.load.traces import Arrival, read_trace
from octavo.bench.load.workload import Item, Workload


def random_workload(count: int, prompt_tokens: int, output_tokens: int, seed: int) -> Workload:
    """`count` requests at once, their prompts distinct."""
    prompts = random_prompts(seed, [prompt_tokens] * count)
    return Workload("random", tuple(Item(prompt, output_tokens) for prompt in prompts), random=True)


def trace_workload(path: str | Path, scale: float, limit: int | None, seed: int) -> Workload:
    """The first `limit` requests of a trace, at its times by `scale`. Prompts are made up:
    distinct, or sharing their beginnings where the trace says so."""
    arrivals = read_trace(path, limit)
    times = scaled([arrival.at for arrival in arrivals], scale)
    items = tuple(
        Item(prompt, arrival.output_tokens, at)
        for prompt, arrival, at in zip(_prompts(arrivals, seed), arrivals, times, strict=True)
    )
    return Workload(Path(path).stem, items, random=not any(arrival.hashes for arrival in arrivals))


def _prompts(arrivals: Sequence[Arrival], seed: int) -> list[str]:
    if any(arrival.hashes for arrival in arrivals):
        return [block_prompt(seed, one.hashes, one.prompt_tokens) for one in arrivals]
    lengths = [arrival.prompt_tokens for arrival in arrivals]
    return list(random_prompts(seed, lengths))


def at_rate(workload: Workload, rate: float, seed: int) -> Workload:
    """The same requests as a Poisson process of `rate` a second."""
    times = poisson(rate, len(workload.items), seed)
    items = (replace(item, at=at) for item, at in zip(workload.items, times, strict=True))
    return replace(workload, items=tuple(items))
