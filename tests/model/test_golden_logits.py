"""Logits of tiny checkpoints against those of transformers (tests/oracle/make_golden.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support import golden_models, run_decoder

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 1e-4
"""Of the largest logit."""


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", golden_models.CONFIGS)
def test_b08_logits_equal_transformers_whole_and_in_chunks(
    name: str, shards: int, tmp_path: Path
) -> None:
    """Half-precision checkpoints are widened: they agree with float32 arithmetic as well."""
    with np.load(GOLDEN / f"{name}.npz") as golden:
        ids, expected = golden["ids"], golden["logits"]
    path = golden_models.write_checkpoint(tmp_path / name, name, shards)
    decoder, ops = run_decoder.load(path)
    for piece in (len(ids), 7, 1):
        found = run_decoder.logits(decoder, ops, ids, piece)
        worst = np.abs(found - expected).max() / np.abs(expected).max()
        assert worst < TOLERANCE, f"{name}, {piece} tokens a step: {worst:.1e}"


@pytest.mark.parametrize("name", golden_models.CONFIGS)
def test_the_comparison_notices_a_field_that_is_dropped(name: str, tmp_path: Path) -> None:
    """Each field of the configuration matters to the logits by more than the tolerance."""
    with np.load(GOLDEN / f"{name}.npz") as golden:
        ids, expected = golden["ids"], golden["logits"]
    config = golden_models.CONFIGS[name]
    changes = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_parameters": None}
    changes |= {"rope_scaling": None}
    path = golden_models.write_checkpoint(tmp_path / name, name)
    for key in changes.keys() & {k for k, v in config.items() if v is not None}:
        golden_models.write_config(path, {**config, key: changes[key]})
        decoder, ops = run_decoder.load(path)
        found = run_decoder.logits(decoder, ops, ids, len(ids))
        assert np.abs(found - expected).max() / np.abs(expected).max() > 2 * TOLERANCE, key
