"""Logits of a tiny checkpoint of each family against transformers'.

The answers are made by tests/oracle/make_families.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.model.errors import ModelError
from octavo.ops.native import native_available, native_reason
from support import golden_families, golden_models, run_decoder

TOLERANCE = 1e-4
"""Of the largest logit."""
BF16 = 0.05
"""Of the logits' size on the whole (root mean square): weights and cache rounded to eight bits
each, through a few layers. Single logits may be further off: scores of random weights are steep."""


def golden(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, list[int]]]:
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        return kept["ids"], kept["logits"], json.loads(str(kept["shapes"]))


def found(path: Path, name: str, ids: np.ndarray, piece: int, **options: Any) -> np.ndarray:
    decoder, ops = run_decoder.load(path, golden_families.CONTEXTS.get(name), **options)
    return run_decoder.logits(decoder, ops, ids, piece)


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", golden_families.CONFIGS)
def test_logits_equal_transformers_whole_and_in_chunks(name: str, tmp_path: Path) -> None:
    ids, expected, shapes = golden(name)
    path = golden_families.write_checkpoint(tmp_path, golden_families.CONFIGS[name], shapes)
    for piece in (len(ids), 7, 1):
        worst = distance(found(path, name, ids, piece), expected)
        assert worst < TOLERANCE, f"{piece} tokens a step: {worst:.1e}"


@pytest.mark.skipif(not native_available(), reason=native_reason())
@pytest.mark.parametrize("name", golden_families.CONFIGS)
def test_the_compiled_backend_agrees_and_its_bits_do_not_depend_on_chunks(
    name: str, tmp_path: Path
) -> None:
    ids, expected, shapes = golden(name)
    path = golden_families.write_checkpoint(tmp_path, golden_families.CONFIGS[name], shapes)
    exact = found(path, name, ids, 7, backend="cpu", dtype="float32", threads=2)
    assert distance(exact, expected) < TOLERANCE
    packed = found(path, name, ids, len(ids), backend="cpu", dtype="bfloat16", threads=2)
    assert np.sqrt(((packed - expected) ** 2).mean() / (expected**2).mean()) < BF16
    again = found(path, name, ids, 5, backend="cpu", dtype="bfloat16")
    assert packed.tobytes() == again.tobytes()


@pytest.mark.parametrize("name", golden_families.CONFIGS)
def test_the_comparison_notices_a_key_that_is_dropped(name: str, tmp_path: Path) -> None:
    """Each key that shapes the computation moves the logits by more than the tolerance, or is
    missed by name, when it falls back to its default."""
    ids, expected, shapes = golden(name)
    config = golden_families.CONFIGS[name]
    path = golden_families.write_checkpoint(tmp_path, config, shapes)
    for key, rest in golden_families.without_each_key(name):
        golden_models.write_config(path, rest)
        try:
            got = found(path, name, ids, len(ids))
        except ModelError:
            continue
        assert distance(got, expected) > 2 * TOLERANCE, f"{name}: {key} does not matter"
