"""Pythia as it is published: its keys, its buffers, its padded vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.model.registry import inspect, open_model
from support import golden_families, golden_models, run_decoder

ROWS, TOKENS, WORDS = 50304, 50277, 50254
"""Of the embedding; of the tokenizer, with its added tokens and without."""

CONFIG: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.24.0",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": ROWS,
}
"""The keys of EleutherAI/pythia-70m, with smaller layers."""


def shapes() -> dict[str, list[int]]:
    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    found = {"gpt_neox.embed_in.weight": [ROWS, width], "embed_out.weight": [ROWS, width]}
    norms = ["gpt_neox.final_layer_norm"]
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"gpt_neox.layers.{i}."
        norms += [at + "input_layernorm", at + "post_attention_layernorm"]
        for module, outputs, inputs in (
            ("attention.query_key_value", 3 * width, width),
            ("attention.dense", width, width),
            ("mlp.dense_h_to_4h", inner, width),
            ("mlp.dense_4h_to_h", width, inner),
        ):
            found |= {f"{at}{module}.weight": [outputs, inputs], f"{at}{module}.bias": [outputs]}
    for norm in norms:
        found |= {f"{norm}.weight": [width], f"{norm}.bias": [width]}
    return found


@pytest.fixture(scope="module")
def pythia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half precision, with the buffers that old files hold. The rows of padding in the head are
    ten times larger than the rest: they would win."""
    path = tmp_path_factory.mktemp("models") / "pythia"
    path.mkdir()
    golden_models.write_config(path, CONFIG)
    tensors = golden_families.tensors(shapes())
    tensors["embed_out.weight"][TOKENS:] *= 10
    tensors = {name: values.astype(np.float16) for name, values in tensors.items()}
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"gpt_neox.layers.{i}.attention."
        tensors[at + "bias"] = np.ones((1, 1, 16, 16), bool)
        tensors[at + "masked_bias"] = np.array(-1e9, np.float32)
        tensors[at + "rotary_emb.inv_freq"] = np.ones(2, np.float16)
    save_file(tensors, path / "model.safetensors")
    added = [{"id": i, "content": f"added {i}"} for i in (0, 1, *range(WORDS, TOKENS))]
    vocab = {f"w{i}": i for i in range(WORDS)}
    tokenizer = {"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": added}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def test_its_keys_are_understood(pythia: Path) -> None:
    info, layer = inspect(pythia), open_model(pythia).spec.layers[0]
    assert (info.architecture, info.max_position) == ("GPTNeoXForCausalLM", 2048)
    assert info.quantization == "float16"
    assert info.eos_token_ids == (0,)
    assert layer.parallel
    assert layer.rope is not None
    assert len(layer.rope.inverse_frequencies) == 2, "a quarter of 16 dimensions, in pairs"


def test_ids_from_the_tokenizers_size_on_have_no_logits(pythia: Path) -> None:
    spec = open_model(pythia).spec
    assert (spec.vocab, spec.vocab_used) == (ROWS, TOKENS)
    decoder, ops = run_decoder.load(pythia)
    found = run_decoder.logits(decoder, ops, [5, 6, TOKENS - 1, ROWS - 1], 4)
    assert found.shape == (4, TOKENS)
    assert np.isfinite(found).all()
