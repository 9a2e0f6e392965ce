"""The worked example in docs/adding-a-family.md runs, and computes what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.model.errors import ModelError
from octavo.model.families import FAMILIES
from octavo.model.families.family import Family
from octavo.model.registry import inspect
from support import golden_families, golden_models, run_decoder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-family.md"

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "gelu",
    "rms_norm_eps": 3e-2,
    "rope_theta": 50000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
FUSED = {
    "self_attn.q_proj": "qkv",
    "self_attn.k_proj": "qkv",
    "self_attn.v_proj": "qkv",
    "mlp.gate_proj": "gate_up",
    "mlp.up_proj": "gate_up",
}
RENAMED = {
    "model.embed_tokens": "heron.tokens",
    "model.norm": "heron.norm",
    "lm_head": "output",
    "model.layers.": "heron.blocks.",
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_2",
    "self_attn.o_proj": "out",
    "mlp.down_proj": "down",
}


@pytest.fixture
def family() -> Family:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 1
    module: dict[str, Any] = {"__name__": "heron"}
    exec(compile(blocks[0], str(PAGE), "exec"), module)
    found = module["FAMILY"]
    assert isinstance(found, Family)
    return found


@pytest.fixture
def checkpoints(tmp_path: Path) -> tuple[Path, Path]:
    """The same weights as LLaMA and as Heron."""
    shapes = {"model.embed_tokens": [97, 32], "lm_head": [97, 32], "model.norm": [32]}
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {at + "input_layernorm": [32], at + "post_attention_layernorm": [32]}
        widths = {"q": 32, "k": 16, "v": 16, "o": 32}
        shapes |= {at + f"self_attn.{x}_proj": [n, 32] for x, n in widths.items()}
        shapes |= {at + f"mlp.{x}_proj": [48, 32] for x in ("gate", "up")}
        shapes |= {at + "mlp.down_proj": [32, 48]}
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()}
    llama = golden_families.write_checkpoint(tmp_path / "llama", LLAMA, shapes)
    pieces: dict[str, list[np.ndarray]] = {}
    for name, values in golden_families.tensors(shapes).items():
        for old, new in (FUSED | RENAMED).items():
            name = name.replace(old, new)
        pieces.setdefault(name, []).append(values)
    heron = tmp_path / "heron"
    heron.mkdir()
    golden_models.save(
        heron / "model.safetensors", {name: np.concatenate(p) for name, p in pieces.items()}
    )
    write_heron(heron)
    return llama, heron


def write_heron(path: Path, **changes: Any) -> None:
    config = {**LLAMA, "architectures": ["HeronForCausalLM"], "model_type": "heron"}
    config |= {"width": config.pop("hidden_size"), "depth": config.pop("num_hidden_layers")}
    golden_models.write_config(path, {**config, "qkv_bias": False, **changes})


def test_the_family_on_the_page_computes_what_llama_does(
    family: Family, checkpoints: tuple[Path, Path]
) -> None:
    llama, heron = checkpoints
    ids = [5, 3, 96, 0, 41, 7]
    decoder, ops = run_decoder.load(heron, families=(*FAMILIES, family))
    found = run_decoder.logits(decoder, ops, ids, 4)
    assert np.isfinite(found).all()
    decoder, ops = run_decoder.load(llama)
    np.testing.assert_array_equal(found, run_decoder.logits(decoder, ops, ids, 4))


def test_its_errors_name_keys_and_tensors(family: Family, checkpoints: tuple[Path, Path]) -> None:
    _, heron = checkpoints
    with pytest.raises(ModelError, match="'HeronForCausalLM'") as caught:
        inspect(heron)
    assert caught.value.code == "unsupported_architecture"
    for changes, said in (
        ({"width": "32"}, "width is '32'"),
        ({"depth": None}, "depth is missing"),
        ({"mixture": True}, "mixture is True, which is not supported"),
        ({"qkv_bias": True}, r"missing: heron.blocks.0.qkv.bias \(64,\)"),
    ):
        write_heron(heron, **changes)
        with pytest.raises(ModelError, match=said):
            inspect(heron, families=[family])
