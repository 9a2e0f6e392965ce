"""Sampling parameters: every range, from the one place that knows them (cases B10, D08)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.core.params import MAX_SEED, Caps, ParamError, SamplingParams, check_token_id

VOCAB = 100
NAN, INF = math.nan, math.inf

GOOD: dict[str, list[Any]] = {
    "n": [1, 128],
    "temperature": [0, 0.0, 1e-6, 1e-4, 2, 100],
    "top_k": [-1, 0, 1, VOCAB, 10**7],
    "top_p": [0, 1e-9, 1, 1.0],
    "min_p": [0, 1],
    "repetition_penalty": [0.01, 1.3, 100],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2.0, 0.5],
    "seed": [None, 0, MAX_SEED],
    "max_tokens": [None, 0, 10**12],
    "min_tokens": [0, 7],
    "logprobs": [None, 0, 20],
    "prompt_logprobs": [None, 0, 20],
    "stop": [(), ("a",), ("x" * 1024,) * 16],
    "stop_token_ids": [(), (0, 99), (5,) * 128],
    "logit_bias": [{}, {0: -100, 99: 100.0}],
}
BAD: dict[str, list[Any]] = {
    "n": [0, -1, 129, 10**5, 1.0, True, "1", None],
    "best_of": [0, 10_000, 1.5],
    "temperature": [-1, 100.1, NAN, INF, "0.5", True, None],
    "top_k": [-2, 1.5, "4", True],
    "top_p": [-0.1, 1.5, NAN, "1"],
    "min_p": [-0.1, 2, NAN],
    "repetition_penalty": [0, 1e-300, -1, 101, NAN, INF],
    "presence_penalty": [-2.1, 2.1, NAN],
    "frequency_penalty": [-3, INF],
    "seed": [-1, 2**63, 1.0, True, "7"],
    "max_tokens": [-1, 1.5, True],
    "min_tokens": [-1, True],
    "logprobs": [-1, 21, 100_000, True],
    "prompt_logprobs": [-1, 21, 1.0],
    "stop": ["ab", ("",), ("x" * 1025,), ("a",) * 17, (1,)],
    "stop_token_ids": [(-1,), (100,), (1.0,), (True,), (1,) * 129],
    "logit_bias": [{100: 1}, {-1: 1}, {1: 101}, {1: NAN}, {1: True}, dict.fromkeys(range(1025), 1)],
    "ignore_eos": [1, None, "true"],
    "skip_special_tokens": [0],
    "include_stop_str_in_output": ["no"],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in GOOD.items() for v in vs])
def test_b10_values_in_range_are_taken(name: str, value: Any) -> None:
    SamplingParams(**{name: value}).validate(VOCAB)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_b10_d08_values_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParamError) as refused:
        SamplingParams(**{name: value}).validate(VOCAB)
    assert refused.value.param == name
    assert name in str(refused.value) or "stop string" in str(refused.value)
    assert len(str(refused.value)) < 300


def test_fields_that_do_not_go_together() -> None:
    with pytest.raises(ParamError, match=r"best_of \(2\) must be at least n \(3\)"):
        SamplingParams(n=3, best_of=2).validate(VOCAB)
    with pytest.raises(ParamError, match=r"min_tokens \(5\) must not exceed max_tokens \(4\)"):
        SamplingParams(min_tokens=5, max_tokens=4).validate(VOCAB)


def test_the_caps_are_arguments() -> None:
    SamplingParams(n=300, logprobs=50).validate(VOCAB, Caps(max_n=300, max_logprobs=50))
    with pytest.raises(ParamError, match="between 1 and 2"):
        SamplingParams(n=3).validate(VOCAB, Caps(max_n=2))


@pytest.mark.parametrize("token", [-1, VOCAB, 5279552648203111001, 1.5, True, "3", None])
def test_a13_ids_outside_the_vocabulary_are_named(token: Any) -> None:
    with pytest.raises(ParamError, match="prompt"):
        check_token_id("prompt", token, VOCAB)


def test_greedy_is_told_in_three_ways() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(top_k=1).greedy and SamplingParams(top_p=0.0).greedy
    assert not SamplingParams().greedy
