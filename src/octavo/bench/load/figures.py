"""From outcomes to figures: percentiles of latencies, rates, counts of failures.

Owns: the definitions of the figures, exact percentiles, medians over runs, ratios of two servers.
Does not know: how they are shown.

Failed requests are counted by reason and are part of no latency and no rate; their tokens are not
counted. The time of a rate is the run's: from the first request sent to the last end.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.bench.load.runner import Run

PERCENTILES = (50, 90, 95, 99)
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")

Figures = dict[str, Any]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of all values, ascending, between the two nearest ranks where it falls between them (as
    numpy does by default). Raises ValueError for no values."""
    if not ordered:
        raise ValueError("no values")
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(run: Run) -> Figures:
    """Plain data, for JSON. Latencies in milliseconds, each None where no request has it."""
    good = [outcome for outcome in run.outcomes if outcome.good]
    failures = Counter(o.failure for o in run.outcomes if o.failure is not None)
    output = sum(outcome.output_tokens for outcome in good)
    prompt = sum(outcome.prompt_tokens for outcome in good)
    chunks = sum(len(outcome.arrivals) for outcome in good)
    seconds = run.seconds or math.inf
    return {
        "workload": run.workload,
        "requests": len(run.outcomes),
        "succeeded": len(good),
        "failed": sum(failures.values()),
        "failures": dict(failures.most_common()),
        "unfinished": sum(outcome.cancelled for outcome in run.outcomes),
        "interrupted": run.interrupted,
        "seconds": run.seconds,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "output_tokens_per_s": output / seconds,
        "total_tokens_per_s": (prompt + output) / seconds,
        "requests_per_s": len(good) / seconds,
        "ttft_ms": _spread(o.ttft for o in good),
        "tpot_ms": _spread(o.tpot for o in good),
        "itl_ms": _spread(gap for o in good for gap in o.gaps),
        "e2e_ms": _spread(o.e2e for o in good),
        "tokens_per_chunk": output / chunks if chunks else None,
        "client_cpu": run.client_cpu,
        "late_ms": 1000 * run.late,
    }


def _spread(seconds: Iterable[float | None]) -> dict[str, float] | None:
    values = sorted(1000 * one for one in seconds if one is not None)
    if not values:
        return None
    spread = {f"p{percent}": percentile(values, percent) for percent in PERCENTILES}
    return {"mean": statistics.fmean(values), **spread, "max": values[-1]}


def medians(runs: Sequence[Figures]) -> Figures:
    """One set of figures for several runs of one workload: the median of each number, counts of
    failures added up."""
    first = runs[0]
    result: Figures = {"workload": first["workload"], "runs": len(runs)}
    for name in ("requests", "succeeded", "failed", "unfinished"):
        result[name] = sum(run[name] for run in runs)
    for name in ("seconds", "prompt_tokens", "output_tokens", *RATES, "client_cpu", "late_ms"):
        result[name] = statistics.median(run[name] for run in runs)
    for name in LATENCIES:
        spreads = [run[name] for run in runs if run[name] is not None]
        result[name] = (
            {key: statistics.median(spread[key] for spread in spreads) for key in spreads[0]}
            if spreads
            else None
        )
    failures: Counter[str] = Counter()
    for run in runs:
        failures.update(run["failures"])
    chunked = [run["tokens_per_chunk"] for run in runs if run["tokens_per_chunk"] is not None]
    result["tokens_per_chunk"] = statistics.median(chunked) if chunked else None
    result["failures"] = dict(failures.most_common())
    return result


def ratios(one: Figures, other: Figures) -> dict[str, float | None]:
    """`one` over `other`: of the rates, and of the medians of the latencies."""
    found: dict[str, float | None] = {}
    for name in RATES:
        found[name] = one[name] / other[name] if other[name] else None
    for name in LATENCIES:
        mine, theirs = one[name], other[name]
        found[name] = mine["p50"] / theirs["p50"] if mine and theirs and theirs["p50"] else None
    return found


def failed_share(all_figures: Iterable[Mapping[str, Any]]) -> float:
    """Failed requests over those that ended."""
    failed = ended = 0
    for figures in all_figures:
        failed += figures["failed"]
        ended += figures["failed"] + figures["succeeded"]
    return failed / ended if ended else 0.0
