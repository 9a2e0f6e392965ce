"""Quantised models at the full length that they are made for, on the compiled attention."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.ops.native import native_available, native_reason
from support import golden_families, run_decoder
from support.family_configs.long import LONG, ROWS
from support.quantized_cases import awq, gptq
from support.quantized_files import MODULES, write_pair

pytestmark = pytest.mark.skipif(not native_available(), reason=native_reason())

MPT_MODULES = ("Wqkv", "out_proj", "up_proj", "down_proj")
CODES = 0.05
"""What rounding activations to eight bits may cost, of the largest logit."""


def last(path: Path, name: str, piece: int, **options: Any) -> np.ndarray:
    decoder, ops = run_decoder.load(path, backend="cpu", threads=2, **options)
    ids = golden_families.token_ids(name)
    return run_decoder.logits(decoder, ops, ids, piece)[-ROWS:]


@pytest.mark.parametrize(
    ("name", "modules", "case"),
    [
        ("llama_32768", MODULES, lambda: gptq(4, 32, True)),
        ("llama_32768", MODULES, lambda: gptq(8, 32, False, act=True)),
        ("llama_32768", MODULES, lambda: awq(32)),
        ("mpt_8192", MPT_MODULES, lambda: awq(16)),
        ("gpt_neox_4096", ("query_key_value", "dense"), lambda: gptq(4, 32, False)),
    ],
)
def test_a_full_context_gives_what_the_dequantised_twin_gives(
    name: str, modules: tuple[str, ...], case: Callable[[], Any], tmp_path: Path
) -> None:
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        shapes = json.loads(str(kept["shapes"]))
    source = golden_families.write_checkpoint(tmp_path / "source", LONG[name][0], shapes)
    make, settings = case()
    coded, plain = write_pair(tmp_path, source, make, settings, modules=modules)
    expected = last(plain, name, 2048, dtype="float32")
    assert last(coded, name, 2048, dtype="float32").tobytes() == expected.tobytes()
    packed = last(coded, name, LONG[name][1])
    assert np.abs(packed - expected).max() / np.abs(expected).max() < CODES
    assert packed.tobytes() == last(coded, name, 1000).tobytes()
