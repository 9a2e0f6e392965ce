"""Figures by hand: percentiles, rates, medians, ratios, and what failures are left out of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.load.client import Outcome
from octavo.bench.load.counters import PrefixCache, parse_prefix_cache, warmth
from octavo.bench.load.figures import failed_share, medians, percentile, ratios, summarize
from octavo.bench.load.runner import Run

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(VALUES, st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    expected = np.percentile(values, percent)
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def outcome(sent: float, arrivals: list[float], tokens: int, **more: object) -> Outcome:
    last = arrivals[-1] if arrivals else sent
    facts = {"last": last, "ended": last, "prompt_tokens": 10, "output_tokens": tokens, **more}
    return Outcome(0.0, sent, arrivals, **facts)  # type: ignore[arg-type]


RUN = Run(
    "w",
    [
        outcome(0.0, [1.0, 1.5, 2.0], 3),
        outcome(1.0, [4.0], 1),
        outcome(1.0, [3.0, 6.0], 4),
        outcome(0.0, [0.001], 0, failure="status 500: boom", ended=50.0),
        outcome(0.0, [], 0, failure="status 500: boom"),
        outcome(0.0, [], 0, failure="an empty stream"),
        outcome(2.0, [2.5], 0, cancelled=True),
    ],
    seconds=10.0,
    client_cpu=0.1,
)


def test_figures_of_a_run() -> None:
    found = summarize(RUN)
    assert (found["requests"], found["succeeded"], found["failed"]) == (7, 3, 3)
    assert found["failures"] == {"status 500: boom": 2, "an empty stream": 1}
    assert found["unfinished"] == 1
    assert (found["prompt_tokens"], found["output_tokens"]) == (30, 8)
    assert found["output_tokens_per_s"] == 0.8 and found["total_tokens_per_s"] == 3.8
    assert found["requests_per_s"] == 0.3
    # TTFT: 1, 3 and 2 seconds; TPOT: 1/2 and 3/3; gaps: 0.5, 0.5 and 3.
    assert found["ttft_ms"]["p50"] == 2000 and found["ttft_ms"]["max"] == 3000
    assert found["tpot_ms"]["mean"] == 750 and found["tpot_ms"]["p99"] == pytest.approx(995)
    assert found["itl_ms"]["p50"] == 500 and found["itl_ms"]["max"] == 3000
    assert found["e2e_ms"]["max"] == 5000
    assert found["tokens_per_chunk"] == 8 / 6


def test_g03_a_run_of_failures_has_no_latencies() -> None:
    found = summarize(Run("w", RUN.outcomes[3:6], seconds=1.0))
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "tokens_per_chunk"):
        assert found[name] is None
    assert found["output_tokens_per_s"] == 0
    assert failed_share([found]) == 1.0
    assert failed_share([]) == 0.0
    assert failed_share([summarize(RUN), found]) == 6 / 9


def test_medians_over_runs_and_ratios_of_two() -> None:
    slow, fast = summarize(RUN), summarize(Run("w", RUN.outcomes[:2], seconds=2.0))
    middle = medians([slow, fast, summarize(Run("w", RUN.outcomes[:1], seconds=1.0))])
    assert middle["runs"] == 3 and middle["requests"] == 10 and middle["failed"] == 3
    assert middle["output_tokens_per_s"] == 2.0  # of 0.8, 2 and 3
    assert middle["failures"] == {"status 500: boom": 2, "an empty stream": 1}
    found = ratios(fast, slow)
    assert found["output_tokens_per_s"] == pytest.approx(2.5)
    assert found["ttft_ms"] == pytest.approx(1.0)
    nothing = summarize(Run("w", RUN.outcomes[3:4], seconds=1.0))
    assert ratios(slow, nothing)["output_tokens_per_s"] is None
    assert ratios(slow, nothing)["ttft_ms"] is None
    assert medians([nothing])["ttft_ms"] is None


METRICS = """# HELP octavo:prefix_cache_queries_total Prompt tokens looked up.
# TYPE octavo:prefix_cache_queries_total counter
octavo:prefix_cache_queries_total 1000.0
octavo:prefix_cache_hits_total 250.0
octavo:prefix_cache_hits_created 1.7e9
"""
LABELS = """vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1e3
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 500
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 4e+02
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 50
"""


def test_counters_of_the_prefix_cache() -> None:
    assert parse_prefix_cache(METRICS) == PrefixCache(1000, 250)
    assert parse_prefix_cache(LABELS) == PrefixCache(1500, 450)
    assert parse_prefix_cache("octavo:prefix_cache_hits_total 3\n") is None
    assert parse_prefix_cache("") is None
    assert PrefixCache(1500, 450).since(PrefixCache(1000, 250)).hit_rate == 0.4
    assert PrefixCache(0, 0).hit_rate == 0


@pytest.mark.parametrize(
    ("hits", "expected", "warns"),
    [(5, 0.0, False), (11, 0.0, True), (950, 0.95, False), (990, 0.95, True)],
)
def test_g01_a_cache_is_warm_above_what_the_workload_shares(
    hits: int, expected: float, warns: bool
) -> None:
    told = warmth(PrefixCache(1000, hits), expected, random=expected == 0)
    assert (told is not None) == warns
    assert told is None or "the prefix cache was warm" in told
    assert warmth(None, 0.0, random=True) is None
