"""The tiny checkpoints and rope configurations whose right answers lie in tests/golden.

Owns: their configurations and seeded weights. Needs numpy and safetensors alone, so that the tests
and the scripts that ask transformers make the very same files.
Does not know: Octavo, torch.

Every field of a configuration is away from its default, every norm weight away from 1 and every
bias away from 0, so that a field that is dropped shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

VOCAB = 97
TOKENS = 40

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 128,
    "rms_norm_eps": 3e-2,
    "tie_word_embeddings": False,
    "rope_theta": 50000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 3.0,
        "original_max_position_embeddings": 16,
    },
    "attention_bias": True,
    "mlp_bias": True,
    "torch_dtype": "float32",
    "bos_token_id": 3,
    "eos_token_id": [5, 7],
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama_tied_yarn_f16": {
        **_LLAMA,
        "hidden_act": "silu",
        "head_dim": 16,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
        },
        "torch_dtype": "float16",
    },
    "qwen2_bf16": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "hidden_act": "silu",
        "max_position_embeddings": 96,
        "rms_norm_eps": 2e-2,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 300000.0},
        "use_sliding_window": False,
        "dtype": "bfloat16",
        "eos_token_id": 5,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "rms_norm_eps": 4e-2,
        "tie_word_embeddings": False,
        "rope_theta": 700000.0,
        "sliding_window": None,
        "torch_dtype": "float32",
    },
}


def token_ids(name: str) -> np.ndarray:
    rng = np.random.default_rng([len(name), TOKENS])
    return rng.integers(0, VOCAB, TOKENS)


def tensors(name: str) -> dict[str, np.ndarray]:
    """float32 weights by their names in a checkpoint, rounded to the checkpoint's dtype."""
    config = CONFIGS[name]
    rng = np.random.default_rng(sum(name.encode()))
    hidden, width = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q = config["num_attention_heads"] * head_dim
    kv = config["num_key_value_heads"] * head_dim
    qkv_bias = config.get("attention_bias", config["model_type"] == "qwen2")
    o_bias, mlp_bias = config.get("attention_bias", False), config.get("mlp_bias", False)
    result: dict[str, np.ndarray] = {}

    def matrix(module: str, outputs: int, inputs: int, bias: bool = False) -> None:
        values = rng.normal(0, 1.4 / np.sqrt(inputs), (outputs, inputs))
        result[f"{module}.weight"] = values.astype(np.float32)
        if bias:
            result[f"{module}.bias"] = rng.normal(0, 0.4, outputs).astype(np.float32)

    def norm(module: str) -> None:
        result[f"{module}.weight"] = rng.uniform(0.5, 1.6, hidden).astype(np.float32)

    matrix("model.embed_tokens", VOCAB, hidden)
    result["model.embed_tokens.weight"] *= np.float32(5)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        norm(at + "input_layernorm")
        norm(at + "post_attention_layernorm")
        matrix(at + "self_attn.q_proj", q, hidden, qkv_bias)
        matrix(at + "self_attn.k_proj", kv, hidden, qkv_bias)
        matrix(at + "self_attn.v_proj", kv, hidden, qkv_bias)
        matrix(at + "self_attn.o_proj", hidden, q, o_bias)
        matrix(at + "mlp.gate_proj", width, hidden, mlp_bias)
        matrix(at + "mlp.up_proj", width, hidden, mlp_bias)
        matrix(at + "mlp.down_proj", hidden, width, mlp_bias)
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        matrix("lm_head", VOCAB, hidden)
    dtype = config.get("dtype", config.get("torch_dtype"))
    return {key: _round(value, dtype) for key, value in result.items()}


def _round(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return values


def write_checkpoint(directory: Path, name: str, shards: int = 1) -> Path:
    """The checkpoint as a Hugging Face directory, in its own dtype, in `shards` files."""
    directory.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[name]
    write_config(directory, config)
    dtype = config.get("dtype", config.get("torch_dtype"))
    weights = tensors(name)
    if shards == 1:
        save(directory / "model.safetensors", weights, dtype)
        return directory
    names = list(weights)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i::shards]
        save(directory / file, {key: weights[key] for key in part}, dtype)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def write_config(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def save(path: Path, weights: dict[str, np.ndarray], dtype: str = "float32") -> None:
    """A safetensors file; bf16, which numpy lacks, is written by hand."""
    if dtype != "bfloat16":
        save_file({k: v.astype(dtype) for k, v in weights.items()}, path, {"format": "pt"})
        return
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for key, value in weights.items():
        piece = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[key] = {
            "dtype": "BF16",
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(piece)],
        }
        data += piece
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


_LONGROPE = {
    "short_factor": [1.0 + 0.05 * i for i in range(16)],
    "long_factor": [1.0 + 0.6 * i for i in range(16)],
    "original_max_position_embeddings": 64,
}

ROPES: dict[str, tuple[dict[str, Any], int]] = {
    "default": ({"rope_type": "default"}, 1024),
    "linear": ({"rope_type": "linear", "factor": 8.0}, 2048),
    "linear_partial": (
        {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        512,
    ),
    "dynamic": ({"rope_type": "dynamic", "factor": 3.0}, 768),
    "dynamic_short": ({"rope_type": "dynamic", "factor": 3.0}, 256),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
    "yarn_betas": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 20,
            "beta_slow": 1.5,
            "truncate": False,
        },
        256,
    ),
    "yarn_mscale": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 1.3,
            "mscale_all_dim": 0.7,
        },
        256,
    ),
    "yarn_attention_factor": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 0.8,
        },
        256,
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        256,
    ),
    "longrope": ({"rope_type": "longrope", **_LONGROPE}, 256),
    "longrope_short": ({"rope_type": "longrope", **_LONGROPE}, 64),
    "longrope_factor": ({"rope_type": "longrope", "factor": 5.0, **_LONGROPE}, 256),
}
"""Name -> (parameters, context that the engine is started with), for the base below."""

ROPE_BASE = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rope_theta": 20000.0,
}


def rope_positions(name: str) -> list[int]:
    """0, around the original length, twice it (where the context is that long) and the last."""
    parameters, context = ROPES[name]
    original = parameters.get("original_max_position_embeddings", 256)
    return sorted(
        {p for p in (0, original - 1, original, 2 * original) if p < context} | {context - 1}
    )
