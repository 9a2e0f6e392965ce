"""Older families beyond their golden logits: variants, names, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.model.errors import ModelError
from octavo.model.families.alibi import alibi_slopes
from octavo.model.registry import inspect, open_model
from support import golden_families, golden_models, run_decoder

Tensors = dict[str, np.ndarray]


def parts(name: str) -> tuple[dict[str, Any], Tensors, np.ndarray, np.ndarray]:
    """Configuration, tensors, prompt and logits of a golden checkpoint."""
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        shapes = json.loads(str(kept["shapes"]))
        tensors = golden_families.tensors(shapes)
        return dict(golden_families.CONFIGS[name]), tensors, kept["ids"], kept["logits"]


def write(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    golden_models.write_config(path, config)
    golden_models.save(path / "model.safetensors", tensors)
    return path


def logits(path: Path, ids: np.ndarray) -> np.ndarray:
    decoder, ops = run_decoder.load(path)
    return run_decoder.logits(decoder, ops, ids, len(ids))


def assert_near(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    assert np.abs(found - expected).max() < tolerance * np.abs(expected).max()


def _headless(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): values for name, values in tensors.items()}


def _with_buffers(tensors: Tensors) -> Tensors:
    mask = np.ones((1, 1, 4, 4), np.float32)
    buffers = {f"transformer.h.{i}.attn.bias": mask for i in range(3)}
    return {**tensors, **buffers, "transformer.h.0.attn.masked_bias": np.zeros(1, np.float32)}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpt2", lambda tensors: _headless(tensors, "transformer.")),
        ("gpt2_unscaled", lambda tensors: _headless(tensors, "transformer.")),
        ("gpt2", _with_buffers),
        ("gpt2", lambda tensors: _headless(_with_buffers(tensors), "transformer.")),
        ("opt", lambda tensors: _headless(tensors, "model.")),
        ("falcon_7b", lambda tensors: _headless(tensors, "transformer.")),
    ],
)
def test_checkpoints_saved_without_a_head_or_with_buffers_load(
    name: str, change: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    config, tensors, ids, expected = parts(name)
    assert_near(logits(write(tmp_path, config, change(tensors)), ids), expected)


def test_b14_mpt_heads_in_groups_equal_the_same_keys_for_every_head(tmp_path: Path) -> None:
    config, tensors, ids, _ = parts("mpt")
    hidden, heads, kv_heads = config["d_model"], config["n_heads"], 2
    width, kv = hidden // heads, kv_heads * (hidden // heads)
    shared = {}
    for name, values in tensors.items():
        if "Wqkv" in name:
            by_head = values[hidden:].reshape(2, heads, width, hidden)
            grouped = by_head[:, :: heads // kv_heads].reshape(2 * kv, hidden)
            tensors[name] = np.concatenate([values[:hidden], grouped])
            repeated = by_head[:, :: heads // kv_heads].repeat(heads // kv_heads, axis=1)
            shared[name] = np.concatenate([values[:hidden], repeated.reshape(2 * hidden, hidden)])
        else:
            shared[name] = values
    attention = {
        **config["attn_config"],
        "attn_type": "grouped_query_attention",
        "kv_n_heads": kv_heads,
    }
    grouped = logits(
        write(tmp_path / "grouped", {**config, "attn_config": attention}, tensors), ids
    )
    assert_near(grouped, logits(write(tmp_path / "shared", config, shared), ids))


def test_b14_mpt_scales_logits(tmp_path: Path) -> None:
    config, tensors, ids, expected = parts("mpt")
    path = write(tmp_path, {**config, "logit_scale": "inv_sqrt_d_model"}, tensors)
    assert_near(logits(path, ids), expected / np.sqrt(config["d_model"]))


@pytest.mark.parametrize(
    "changes", [{"expansion_ratio": 2}, {"ffn_config": {"ffn_hidden_size": 96}}], ids=str
)
def test_mpt_may_say_how_wide_its_mlp_is(changes: dict[str, Any], tmp_path: Path) -> None:
    config, tensors, ids, _ = parts("mpt")
    for name, values in tensors.items():
        if "up_proj" in name:
            tensors[name] = values[:96]
        elif "down_proj" in name:
            tensors[name] = values[:, :96]
    assert np.isfinite(logits(write(tmp_path, {**config, **changes}, tensors), ids)).all()


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi is False"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln is True"),
        ("mpt", {"attn_config": {"qk_gn": True}}, "attn_config.qk_gn is True"),
        ("mpt", {"attn_config": {"prefix_lm": True}}, "attn_config.prefix_lm is True"),
        ("mpt", {"attn_config": {"rope": True}}, "attn_config.rope is True"),
        ("mpt", {"attn_config": {"attn_impl": "ring"}}, "attn_config.attn_impl is 'ring'"),
        ("mpt", {"attn_config": {"sliding_window_size": 9}}, "sliding_window_size is 9"),
        ("mpt", {"ffn_config": {"ffn_type": "mptglu"}}, "ffn_config.ffn_type is 'mptglu'"),
        ("mpt", {"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm'"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is False"),
        ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim is 32"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is True"),
        ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False"),
        ("falcon_40b", {"parallel_attn": False}, "parallel_attn is False"),
        ("gptj", {"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm is True"),
    ],
)
def test_b14_what_is_not_computed_is_refused_by_name(
    name: str, changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    """Before any tensor is looked at: there is none here."""
    tmp_path.mkdir(exist_ok=True)
    golden_models.write_config(tmp_path, {**golden_families.CONFIGS[name], **changes})
    with pytest.raises(ModelError) as caught:
        inspect(tmp_path)
    assert caught.value.code == "unsupported_feature"
    assert key in str(caught.value).splitlines()[0]
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("mpt", "modeling_mpt.MPTForCausalLM"),
        ("mpt", "mosaicml/mpt-7b--modeling_mpt.MPTForCausalLM"),
        ("falcon_7b", "modeling_falcon.FalconForCausalLM"),
        ("phi3", "modeling_phi3.Phi3ForCausalLM"),
    ],
)
def test_d12_code_that_computes_what_is_built_in_is_left_out(
    name: str, code: str, tmp_path: Path
) -> None:
    config, tensors, ids, expected = parts(name)
    config["auto_map"] = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": code}
    assert_near(logits(write(tmp_path, config, tensors), ids), expected)


@pytest.mark.parametrize("code", ["modeling_own.MPTForCausalLM", None, 3])
def test_d12_any_other_code_is_refused(code: object, tmp_path: Path) -> None:
    config, tensors, _, _ = parts("mpt")
    config["auto_map"] = {"AutoModelForCausalLM": code}
    with pytest.raises(ModelError) as caught:
        inspect(write(tmp_path, config, tensors))
    assert caught.value.code == "remote_code"


@pytest.mark.parametrize("heads", [1, 2, 6, 12, 16, 71, 112])
def test_alibi_slopes_are_those_of_mpts_own_code(heads: int) -> None:
    """Which takes every second member of the sequence for the next power of two, then the rest."""
    power = 2 ** int(np.ceil(np.log2(heads)))
    slopes = 2.0 ** -(np.arange(1, power + 1) * (8 / power))
    if power != heads:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[:heads]
    np.testing.assert_allclose(alibi_slopes(heads), slopes, rtol=1e-12)


def test_falcons_slopes_are_bfloat16_and_scaled_with_the_scores(tmp_path: Path) -> None:
    """32 heads, as in falcon-rw-1b: no slope but every fourth is a power of two."""
    config, _, _, _ = parts("falcon_rw")
    config |= {"hidden_size": 64, "num_attention_heads": 32, "ffn_hidden_size": 8}
    config |= {"num_hidden_layers": 1}
    shapes = {"transformer.word_embeddings.weight": [97, 64]}
    at = "transformer.h.0."
    for norm in (at + "input_layernorm", at + "post_attention_layernorm", "transformer.ln_f"):
        shapes |= {f"{norm}.weight": [64], f"{norm}.bias": [64]}
    for module, outputs, inputs in (
        ("self_attention.query_key_value", 192, 64),
        ("self_attention.dense", 64, 64),
        ("mlp.dense_h_to_4h", 8, 64),
        ("mlp.dense_4h_to_h", 64, 8),
    ):
        shapes |= {f"{at}{module}.weight": [outputs, inputs], f"{at}{module}.bias": [outputs]}
    path = golden_families.write_checkpoint(tmp_path, config, shapes)
    found = np.array(open_model(path).spec.layers[0].attention.alibi_slopes) * np.sqrt(2)
    exact = np.array(alibi_slopes(32))
    np.testing.assert_allclose(found, exact, rtol=2**-8)
    # 2 ** -0.25 is 0.84089...; the bfloat16 nearest to it is 215 / 256.
    assert found[0] == pytest.approx(215 / 256, abs=1e-12)
    assert found[3] == pytest.approx(0.5, abs=1e-12)
