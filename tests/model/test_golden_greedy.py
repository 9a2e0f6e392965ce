"""Real models' greedy tokens against those of transformers on the same weights, in float32.

The answers are made by tests/oracle/make_greedy.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.ops.native import native_available, native_reason
from support import run_decoder
from support.default_model import default_model, real_model

GOLDEN = Path(__file__).parents[1] / "golden"
NEAR_TIE = 1e-3
LENGTH = 64


@pytest.mark.timeout(900)
def test_20_prompts_of_64_greedy_tokens_equal_transformers() -> None:
    check("smollm2", default_model(), 20, backend="reference")


@pytest.mark.models
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not native_available(), reason=native_reason())
@pytest.mark.parametrize(
    ("name", "alias", "prompts"),
    [("qwen", "qwen2.5-coder-0.5b", 20), ("gemma", "gemma3-270m", 21)],
)
def test_larger_models_greedy_tokens_equal_transformers(
    name: str, alias: str, prompts: int
) -> None:
    """The last prompt of Gemma's is longer than its window."""
    check(name, real_model(alias), prompts, backend="cpu")


def check(name: str, model: Path, count: int, *, backend: str) -> None:
    """The first difference of a sequence may come only where the best two logits nearly tie; from
    there on the two have other contexts."""
    with np.load(GOLDEN / f"{name}.npz") as golden:
        prompts = [golden[f"{i}.prompt"].tolist() for i in range(count)]
        expected = np.stack([golden[f"{i}.tokens"] for i in range(count)])
        gaps = np.stack([golden[f"{i}.gaps"] for i in range(count)])
    assert expected.shape == (count, LENGTH)
    decoder, ops = run_decoder.load(model, backend=backend, dtype="float32", threads=2)
    found = run_decoder.greedy(decoder, ops, prompts, LENGTH)
    whole = 0
    for i in range(count):
        other = np.flatnonzero(found[i] != expected[i])
        if not len(other):
            whole += 1
            continue
        first = other[0]
        assert gaps[i, first] < NEAR_TIE, (
            f"prompt {i}, token {first}: {found[i, first]} instead of {expected[i, first]} "
            f"at a gap of {gaps[i, first]:.4f}"
        )
    assert whole >= 15, "near-ties are rare"
