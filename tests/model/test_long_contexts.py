"""Contexts as long as the models', on the compiled attention: the last logits are transformers'.

The answers are made by tests/oracle/make_families.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.ops.native import native_available, native_reason
from support import golden_families, golden_models, run_decoder
from support.family_configs.long import LONG, ROWS

pytestmark = pytest.mark.skipif(not native_available(), reason=native_reason())

TOLERANCE = 1e-4
BF16 = 0.04


def golden(name: str) -> tuple[np.ndarray, dict[str, list[int]]]:
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        return kept["logits"], json.loads(str(kept["shapes"]))


def last(path: Path, name: str, piece: int, **options: Any) -> np.ndarray:
    ids = golden_families.token_ids(name)
    decoder, ops = run_decoder.load(path, backend="cpu", threads=2, **options)
    return run_decoder.logits(decoder, ops, ids, piece)[-ROWS:]


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", LONG)
def test_the_last_logits_of_a_full_context_equal_transformers(name: str, tmp_path: Path) -> None:
    expected, shapes = golden(name)
    path = golden_families.write_checkpoint(tmp_path, LONG[name][0], shapes)
    assert distance(last(path, name, 2048, dtype="float32"), expected) < TOLERANCE


@pytest.mark.parametrize("name", LONG)
def test_bfloat16_agrees_and_its_bits_do_not_depend_on_chunks(name: str, tmp_path: Path) -> None:
    expected, shapes = golden(name)
    path = golden_families.write_checkpoint(tmp_path, LONG[name][0], shapes)
    whole = last(path, name, LONG[name][1], dtype="bfloat16")
    assert distance(whole, expected) < BF16
    assert whole.tobytes() == last(path, name, 1000, dtype="bfloat16").tobytes()


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gpt_neox_4096", "rotary_emb_base", 50500),
        ("mpt_8192", "attn_config", {"alibi_bias_max": 15.5, "clip_qkv": 1.5}),
        ("llama_32768", "rope_theta", 990000.0),
    ],
)
def test_a_position_slightly_off_is_noticed(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    expected, shapes = golden(name)
    path = golden_families.write_checkpoint(tmp_path, LONG[name][0], shapes)
    golden_models.write_config(path, {**LONG[name][0], key: value})
    assert distance(last(path, name, 2048, dtype="float32"), expected) > 2 * TOLERANCE
