"""What is sent and when: files, traces, made-up prompts, arrivals."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.load.arrivals import poisson, scaled
from octavo.bench.load.made import at_rate, random_workload, trace_workload
from octavo.bench.load.prompts import BLOCK_WORDS, block_prompt, random_prompts, salt
from octavo.bench.load.traces import Arrival, read_trace
from octavo.bench.load.workload import Item, WorkloadError, read_workloads, shared_share

DATA = Path(__file__).resolve().parents[3] / "shared/data"


def test_a_workload_file(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    one = [{"prompt": "a", "max_tokens": 3}, {"prompt": "b", "max_tokens": 4}]
    file.write_text(json.dumps({"first": one, "second": one[:1]}))
    first, second = read_workloads(file)
    assert (first.name, first.items) == ("first", (Item("a", 3), Item("b", 4)))
    assert second.items == (Item("a", 3),)
    assert [w.name for w in read_workloads(file, ["second"])] == ["second"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ('{"a": []}', "a must be a list"),
        ('{"a": [{"max_tokens": 1}]}', r"a\[0\]: needs a prompt"),
        ('{"a": [{"prompt": "x", "max_tokens": 0}]}', r"a\[0\]: max_tokens"),
        ('{"a": [{"prompt": "x", "max_tokens": true}]}', r"a\[0\]: max_tokens"),
        ('{"b": [{"prompt": "x", "max_tokens": 1}]}', "has no workload 'a'; it has b"),
    ],
)
def test_workload_files_that_cannot_be_used(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "w.json"
    file.write_text(text)
    with pytest.raises(WorkloadError, match=told):
        read_workloads(file, ["a"])


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,0
"""
SERVEGEN = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,364,422\n0.25,419,467\n"
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens\n3772,54,3826\n2155,171,2326\n"
MOONCAKE = (
    '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 1500, "input_length": 800, "output_length": 4, "hash_ids": [0, 2]}\n'
)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("servegen.csv", SERVEGEN, [Arrival(0.25, 419, 467), Arrival(0.5, 364, 422)]),
        ("vidur.csv", VIDUR, [Arrival(0.0, 3772, 54), Arrival(0.0, 2155, 171)]),
        ("m.jsonl", MOONCAKE, [Arrival(0.0, 700, 5, (0, 1)), Arrival(1.5, 800, 4, (0, 2))]),
    ],
)
def test_traces(tmp_path: Path, name: str, text: str, found: list[Arrival]) -> None:
    (tmp_path / name).write_text(text)
    assert read_trace(tmp_path / name) == found
    assert len(read_trace(tmp_path / name, limit=1)) == 1


def test_a_trace_with_dates(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    first, second = read_trace(tmp_path / "a.csv")
    assert second.at - first.at == pytest.approx(0.052, abs=1e-6)
    assert (first.prompt_tokens, first.output_tokens) == (4808, 10)
    assert second.output_tokens == 1  # an answer of nothing cannot be asked for


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "x,y\n1,2\n", "line 2: no column for the prompt's tokens"),
        ("a.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n1,two,3\n", "line 2"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nlater,2,3\n", "line 2"),
        ("a.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n", "holds no requests"),
        ("a.jsonl", "nonsense\n", "line 1: not JSON"),
        ("a.jsonl", "[]\n", "line 1: not an object"),
    ],
)
def test_traces_that_cannot_be_used(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(WorkloadError, match=told):
        read_trace(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19366),
        ("mooncake_conversation.jsonl", 12031),
        ("servegen_m-small.csv", None),
        ("arxiv_lengths.csv", 28257),
    ],
)
def test_real_traces(name: str, count: int | None) -> None:
    path = DATA / "traces" / name
    if not path.is_file():
        pytest.skip(f"the traces are not here: {path}")
    arrivals = read_trace(path)
    assert count is None or len(arrivals) == count
    assert all(a.prompt_tokens > 0 and a.output_tokens > 0 for a in arrivals)
    assert [a.at for a in arrivals] == sorted(a.at for a in arrivals)


def test_g01_random_prompts_are_distinct_and_follow_the_seed() -> None:
    prompts = list(random_prompts(7, [64] * 500))
    assert len(set(prompts)) == 500
    assert prompts == list(random_prompts(7, [64] * 500))
    assert not set(prompts) & set(random_prompts(8, [64] * 500))
    assert {len(prompt.split()) for prompt in prompts} == {64}
    assert shared_share(prompts) < 0.02
    assert salt(1) != salt(2) and len(salt(1).split()) == 3
    with pytest.raises(ValueError, match="not enough distinct prompts of 1 tokens"):
        list(random_prompts(0, [1] * 1000))


def test_prompts_of_equal_hashes_begin_alike(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    workload = trace_workload(tmp_path / "m.jsonl", 0.5, None, seed=3)
    one, two = (item.prompt.split() for item in workload.items)
    assert (len(one), len(two)) == (700, 800)
    assert one[:BLOCK_WORDS] == two[:BLOCK_WORDS]
    assert one[BLOCK_WORDS:600] != two[BLOCK_WORDS:600]
    assert [item.at for item in workload.items] == [0.0, 0.75] and not workload.random
    assert block_prompt(3, (0, 1), 5).split() == one[:5]


def test_traces_without_hashes_get_distinct_prompts(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(SERVEGEN)
    workload = trace_workload(tmp_path / "s.csv", 1.0, None, seed=3)
    assert workload.random and workload.name == "s"
    assert [item.at for item in workload.items] == [0.0, 0.25]
    assert [item.max_tokens for item in workload.items] == [467, 422]


def test_poisson_arrivals() -> None:
    times = poisson(5.0, 4000, seed=1)
    assert times == poisson(5.0, 4000, seed=1) != poisson(5.0, 4000, seed=2)
    assert times == sorted(times) and times[0] > 0
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    # An exponential's mean and deviation are the same; 4,000 of them are within 10 %.
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1)
    with pytest.raises(ValueError, match="rate must be above 0"):
        poisson(0.0, 1, seed=1)


def test_requests_at_a_rate() -> None:
    workload = at_rate(random_workload(5, 8, 2, seed=1), 100.0, seed=2)
    assert [item.at for item in workload.items] == poisson(100.0, 5, seed=2)
    assert workload.random and workload.items[0].max_tokens == 2


def test_a_trace_is_stretched() -> None:
    assert scaled([10.0, 12.0, 11.0], 0.5) == [0.0, 1.0, 0.5]
    assert scaled([], 2.0) == []
    with pytest.raises(ValueError, match="scale must be 0 or above"):
        scaled([1.0], -1.0)


@given(st.lists(st.text("ab", max_size=6), max_size=12))
def test_what_can_be_shared_is_what_a_trie_saves(prompts: list[str]) -> None:
    nodes = {prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)}
    total = sum(map(len, prompts))
    assert shared_share(prompts) == pytest.approx((total - len(nodes)) / total if total else 0.0)
