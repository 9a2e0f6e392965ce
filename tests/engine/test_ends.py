"""Which tokens end an answer, from files to what a user gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from support.tiny_models import EOS, chain

SCRIPT = ["a", "b", "c", "d", "e"]


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    """Greedy decoding walks abcde and EOS, again and again; c and EOS end an answer, each named in
    a file of its own."""
    path = chain(SCRIPT).write(tmp_path / "chain")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "eos_token_id": EOS}))
    generation = {"eos_token_id": [ord("c"), EOS], "do_sample": False}
    (path / "generation_config.json").write_text(json.dumps(generation))
    return LLM(str(path), kv_tokens=1024, max_num_seqs=4, max_model_len=256)


@pytest.mark.parametrize(
    ("params", "text", "reason"),
    [
        ({}, "ab", "stop"),
        ({"ignore_eos": True, "max_tokens": 9}, "abcdeabc", "length"),
        ({"ignore_eos": True, "stop_token_ids": (ord("e"),)}, "abcd", "stop"),
        ({"ignore_eos": True, "stop": ("d",)}, "abc", "stop"),
        ({"min_tokens": 1}, "ab", "stop"),
    ],
)
def test_e07_all_ends_stop_unless_they_are_ignored(
    params: dict[str, Any], text: str, reason: str, llm: LLM
) -> None:
    answer = llm.generate("x", SamplingParams(**{"max_tokens": 32, **params, "temperature": 0.0}))
    assert answer[0].outputs[0].text == text
    assert answer[0].outputs[0].finish_reason == reason


def test_e07_min_tokens_masks_every_end(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5, max_tokens=32)
    tokens = list(llm.generate("x", params)[0].outputs[0].token_ids)
    assert not {ord("c"), EOS} & set(tokens[:5])
    assert tokens[-1] in (ord("c"), EOS), "and then one ends it"


def test_e07_defaults_of_the_model_are_greedy(llm: LLM) -> None:
    assert llm.engine.prepared.generation == {"temperature": 0.0}
    assert llm.generate("x")[0].outputs[0].text == "ab"
