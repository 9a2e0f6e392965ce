"""What configurations of windowed families and of Gemma mean, where logits do not show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.model.errors import ModelError
from octavo.model.families import find_family
from octavo.model.families.fields import Fields
from octavo.model.registry import inspect
from octavo.model.spec import DecoderSpec
from support import golden_families
from support.family_configs import newer


def read(name: str, **changes: Any) -> DecoderSpec:
    """The spec of a golden configuration; a key that is changed to ... is left out."""
    config = {k: v for k, v in {**newer.CONFIGS[name], **changes}.items() if v is not ...}
    plan = find_family(config, "config.json").read(Fields(config, "config.json"), ())
    return plan.build(1 << 16)


def windows(spec: DecoderSpec) -> list[int]:
    return [layer.attention.window for layer in spec.layers]


def refusal(name: str, **changes: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read(name, **changes)
    return str(caught.value)


@pytest.mark.parametrize(("given", "window"), [(9, 9), (None, 0), (..., 4096)])
def test_mistral_has_its_window_on_all_layers(given: Any, window: int) -> None:
    assert windows(read("mistral_window", sliding_window=given)) == [window] * 4


def test_qwen_has_windows_only_where_they_are_switched_on() -> None:
    assert windows(read("qwen2_window")) == [0, 0, 11, 11]
    assert windows(read("qwen2_window", max_window_layers=0)) == [11] * 4
    assert windows(read("qwen2_window", use_sliding_window=False)) == [0] * 4
    assert windows(read("qwen2_window", sliding_window=None)) == [0] * 4
    assert windows(read("qwen2_window", sliding_window=...)) == [0, 0, 4096, 4096]


def test_layer_types_that_contradict_the_switch_are_refused() -> None:
    assert "use_sliding_window" in refusal("qwen3", use_sliding_window=False)


@pytest.mark.parametrize("types", ["x", [], ["full_attention"] * 3, ["chunked_attention"] * 4])
def test_layer_types_that_cannot_be_are_refused_by_name(types: Any) -> None:
    assert "layer_types" in refusal("gemma2", layer_types=types)


@pytest.mark.parametrize("layers", [[1, 0], [1, 0, 2, 1], [True, False, True, True], 4])
def test_no_rope_layers_that_cannot_be_are_refused_by_name(layers: Any) -> None:
    assert "no_rope_layers" in refusal("smollm3", no_rope_layers=layers)


def test_smollm3_has_a_layer_without_rope_in_four() -> None:
    spec = read("smollm3", no_rope_layers=..., use_sliding_window=False)
    assert [layer.rope is None for layer in spec.layers] == [False, False, False, True]
    assert windows(spec) == [0] * 4


def test_layers_with_equal_windows_share_a_group() -> None:
    places = [(a.group, a.layer) for a in (x.attention for x in read("gemma3").layers)]
    assert places == [(0, 0), (0, 1), (1, 0), (0, 2)]


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3"])
def test_e09_gemma_is_tied_where_the_key_is_missing(name: str) -> None:
    assert read(name, tie_word_embeddings=...).tied
    assert not read(name).tied


@pytest.mark.parametrize(
    ("dtype", "scale"), [("bfloat16", 7.75), ("float16", 7.74609375), ("float32", 60**0.5)]
)
def test_b13_the_embedding_scale_is_rounded_to_the_checkpoints_type(
    dtype: str, scale: float
) -> None:
    for key in ("dtype", "torch_dtype"):
        spec = read("gemma2", hidden_size=60, **{key: dtype})
        assert spec.embed_scale == pytest.approx(scale, rel=1e-7)


def test_gemma_3s_context_has_its_ropes_factor_in_it() -> None:
    config = newer.CONFIGS["gemma3"]
    family = find_family(config, "c")
    assert family.read(Fields(config, "c"), ()).max_position == 64


def test_gemma_3_takes_what_its_config_leaves_out_from_its_makers() -> None:
    config = {"architectures": ["Gemma3ForCausalLM"], "hidden_size": 2560, "num_hidden_layers": 34}
    plan = find_family(config, "c").read(Fields(config, "c"), ())
    spec = plan.build(8192)
    attention = spec.layers[0].attention
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (8, 4, 256)
    assert (spec.vocab, plan.max_position, attention.window) == (262208, 131072, 4096)
    assert windows(spec).count(0) == 5
    assert not any(windows(plan.build(4096))), "a window over the whole context is none"


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3"])
def test_a_gemma_that_embeds_text_is_refused(name: str) -> None:
    assert "use_bidirectional_attention" in refusal(name, use_bidirectional_attention=True)


@pytest.mark.parametrize("value", [{"rope_type": "linear", "factor": 2.0}, [1], "x"])
def test_b07_gemma_3_wants_rope_parameters_for_each_type_of_layer(value: Any) -> None:
    assert "rope_parameters" in refusal("gemma3", rope_parameters=value)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_of_a_gemma_that_sees_the_text_model_is_used(
    prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In both orders of its names; the log says how much is left out."""
    with np.load(golden_families.GOLDEN / "gemma3_pictures.npz") as kept:
        shapes = json.loads(str(kept["shapes"]))
    named = {name.replace("language_model.model.", prefix): s for name, s in shapes.items()}
    config = newer.CONFIGS["gemma3_pictures"]
    path = golden_families.write_checkpoint(tmp_path, config, named)
    with caplog.at_level("INFO"):
        info = inspect(path)
    assert info.architecture == "Gemma3ForConditionalGeneration"
    assert "only the text model is used" in caplog.text
    others = sum("vision_tower" in name or "multi_modal" in name for name in shapes)
    assert f"{others} other tensors" in caplog.text
    assert info.vocab_size == 97
