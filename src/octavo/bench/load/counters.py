"""What a server says of itself before and after a run: its prefix cache, and its model's name.

Owns: reading /metrics and /v1/models, and whether the cache was warm.
Does not know: requests under load.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, replace

from octavo.bench.load.client import Api
from octavo.bench.load.http import HttpFault, exchange

WARM = 0.01
"""Share of prompt tokens beyond what the workload itself shares from which on a cache was warm."""
PATIENCE = 10.0
_COUNTER = re.compile(
    r"^(?:\w+:)?prefix_cache_(queries|hits)(?:_total)?(?:\{.*\})?\s+([0-9.eE+-]+)\s*$", re.M
)


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Prompt tokens looked up and found, as counters or as the difference of two of them."""

    queries: float
    hits: float

    def since(self, before: PrefixCache) -> PrefixCache:
        return PrefixCache(self.queries - before.queries, self.hits - before.hits)

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries if self.queries > 0 else 0.0


def parse_prefix_cache(text: str) -> PrefixCache | None:
    """From Prometheus text (the names of vLLM and Octavo, any prefix), all labels added up; None
    where the server does not count."""
    found = {"queries": 0.0, "hits": 0.0}
    names = set()
    for name, value in _COUNTER.findall(text):
        found[name] += float(value)
        names.add(name)
    return PrefixCache(**found) if len(names) == 2 else None


async def prefix_cache(api: Api) -> PrefixCache | None:
    """None where the server has no such counters, or cannot be asked."""
    text = await _get(api, "/metrics")
    return None if text is None else parse_prefix_cache(text)


async def with_model(api: Api) -> Api:
    """With the model's name, as the server lists it, where none is given."""
    if api.model is not None:
        return api
    try:
        listed = json.loads(await _get(api, "/v1/models") or "{}")["data"]
        return replace(api, model=str(listed[0]["id"]))
    except (ValueError, KeyError, IndexError, TypeError):
        return api


async def _get(api: Api, path: str) -> str | None:
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await exchange(
                api.target, "GET", path, b"", api.headers(), lambda _, data: parts.append(data)
            )
    except (HttpFault, TimeoutError):
        return None
    return b"".join(parts).decode("utf-8", "replace") if answer.status == 200 else None


def warmth(cache: PrefixCache | None, expected: float, random: bool) -> str | None:
    """A warning where more was found in the cache than the workload's own sharing explains.

    `expected`: the share of the prompts that an earlier prompt of the same run begins with.
    """
    if cache is None or cache.hit_rate <= expected + WARM:
        return None
    kind = "random prompts" if random else "this workload's own sharing"
    return (
        f"the prefix cache was warm: {cache.hit_rate:.1%} of the prompt tokens came from it, and "
        f"{kind} would explain {expected:.1%}. Vary --seed, or leave --no-salt out."
    )
