"""Families in GGUF files: the logits of the checkpoint that the file was made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.model.families import find_gguf_family
from octavo.model.families.fields import Fields
from octavo.model.registry import inspect
from octavo.model.spec import DecoderSpec
from support import golden_families, run_decoder
from support.gguf_newer_families import write_gguf

NAMES = [name for name in golden_families.CONFIGS if name.endswith("_gguf")]
_GEMMA = {
    "hidden_size": 60,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "sliding_window": 16,
}


@pytest.mark.parametrize("name", NAMES)
def test_e05_logits_equal_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    """Names, keys, the 1 that is in Gemma's norms already, what the metadata leaves out."""
    config = golden_families.CONFIGS[name]
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        ids, expected, shapes = kept["ids"], kept["logits"], json.loads(str(kept["shapes"]))
    path = write_gguf(tmp_path / "m.gguf", config, golden_families.tensors(shapes))
    assert inspect(path).architecture == config["architectures"][0]
    decoder, ops = run_decoder.load(path)
    for piece in (len(ids), 5):
        found = run_decoder.logits(decoder, ops, ids, piece)
        assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4


def gguf_spec(architecture: str, **values: object) -> DecoderSpec:
    fields = Fields({**_GEMMA, **values}, "m.gguf", gguf=True)
    return find_gguf_family(architecture, "m.gguf").read(fields, ()).build(64)


@pytest.mark.parametrize(("architecture", "largest"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_divides_its_scores_by_its_hidden_size(
    architecture: str, largest: int
) -> None:
    """The metadata says nothing of query_pre_attn_scalar; llama.cpp goes by the layers too."""
    for layers, width in ((largest, 60 / 4), (largest - 1, 8)):
        found = gguf_spec(architecture, num_hidden_layers=layers).layers[0].attention.scale
        assert found == pytest.approx(width**-0.5)


def test_gemma2_caps_as_it_was_trained_where_the_metadata_is_silent() -> None:
    spec = gguf_spec("gemma2", num_hidden_layers=2)
    assert (spec.layers[0].attention.softcap, spec.logit_bound) == (50.0, 30.0)


@pytest.mark.parametrize(
    "value",
    [{"sliding_window_pattern": 2}, {"layer_types": ["sliding_attention", "full_attention"] * 2}],
)
def test_gemma3_metadata_may_say_which_layers_have_a_window(value: dict[str, object]) -> None:
    spec = gguf_spec("gemma3", num_hidden_layers=4, **value)
    assert [layer.attention.window for layer in spec.layers] == [16, 0, 16, 0]
