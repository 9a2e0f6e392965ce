"""GGUF files of families beyond LLaMA: the logits of the checkpoints that they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from octavo.model.errors import ModelError
from octavo.model.registry import inspect
from support import gguf_families, golden_families, golden_models, run_decoder

TWINS: dict[str, tuple[str, ...]] = {
    "mpt": ("attn_config.softmax_scale",),
    "mpt_biases": ("attn_config.softmax_scale",),
    "gpt2": ("activation_function", "scale_attn_by_inverse_layer_idx"),
    "falcon_7b": (),
    "falcon_40b": ("activation",),
    "falcon_11b": ("rope_scaling",),
    "gpt_neox": (),
    "gpt_neox_sequential": ("hidden_act", "rope_scaling"),
    "phi3": ("hidden_act",),
    "phi3_long": (),
    "phi3_short": (),
    "stablelm": ("hidden_act",),
    "stablelm_parallel": ("hidden_act",),
}
"""Golden configurations, without the keys that llama.cpp has no metadata for."""


def checkpoint(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    config = json.loads(json.dumps(golden_families.CONFIGS[name]))
    for key in TWINS[name]:
        outer, _, inner = key.rpartition(".")
        del (config[outer] if outer else config)[inner]
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        return config, golden_families.tensors(json.loads(str(kept["shapes"])))


def logits(path: Path, name: str) -> np.ndarray:
    decoder, ops = run_decoder.load(path, golden_families.CONTEXTS.get(name))
    return run_decoder.logits(decoder, ops, golden_families.token_ids(name), 16)


def twin(path: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    path.mkdir()
    golden_models.write_config(path, config)
    golden_models.save(path / "model.safetensors", tensors)
    return path


@pytest.mark.parametrize("name", TWINS)
def test_e05_logits_equal_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    config, tensors = checkpoint(name)
    path = gguf_families.convert(tmp_path / "m.gguf", config, tensors)
    expected = logits(twin(tmp_path / "twin", config, tensors), name)
    worst = np.abs(logits(path, name) - expected).max() / np.abs(expected).max()
    assert worst < 1e-5
    facts, others = inspect(path), inspect(tmp_path / "twin")
    assert facts.max_position == others.max_position
    assert facts.parameters == others.parameters
    assert facts.architecture == others.architecture


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope.dimension_count": 0}, "partial_rotary_factor is 0"),
        ({"rope.dimension_count": 17}, "partial_rotary_factor is 1.0625"),
        ({"rope.scaling.attn_factor": -1.0}, "'attention_factor', which is -1.0"),
        ({"attention.sliding_window": "20"}, "sliding_window is '20'"),
    ],
)
def test_e05_metadata_that_cannot_be_are_refused_by_name(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config, tensors = checkpoint("phi3_long")
    path = gguf_families.convert(tmp_path / "m.gguf", config, tensors, metadata=changes)
    with pytest.raises(ModelError, match=said):
        inspect(path)


def test_e05_parts_of_fused_tensors_stay_quantised(tmp_path: Path) -> None:
    """q, k, v, gate and up are taken out of Q8_0 and Q4_1 tensors without widening them."""
    config, tensors = checkpoint("phi3")
    kinds = {"qkv_proj": Type.Q8_0, "gate_up_proj": Type.Q4_1}
    path = gguf_families.convert(
        tmp_path / "m.gguf",
        config,
        tensors,
        {"attn_qkv.weight": Type.Q8_0, "ffn_up.weight": Type.Q4_1},
    )
    for name, values in tensors.items():
        for module, kind in kinds.items():
            if module in name:
                stored = gguf.quants.quantize(values, kind)
                tensors[name] = gguf.quants.dequantize(stored, kind)
    expected = logits(twin(tmp_path / "twin", config, tensors), "phi3")
    worst = np.abs(logits(path, "phi3") - expected).max() / np.abs(expected).max()
    assert worst < 1e-5
    packs = {part for pack in inspect(path).packs for part, _ in pack.parts}
    assert packs == {"gguf:Q8_0", "gguf:Q4_1", "f32"}
