"""The families' tiny checkpoints as GGUF files, after llama.cpp's convert_hf_to_gguf.py.

Owns: which names and keys those have for each family, and what the conversion does to values.
Does not know: Octavo.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.gguf_files import NAMES, permute

_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OWN_NAMES: dict[str, dict[str, str]] = {
    "qwen3": _HEAD_NORMS,
    "gemma2": _SANDWICH,
    "gemma3": {**_SANDWICH, **_HEAD_NORMS},
}
_SIZES = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
}
_NUMBERS = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_PERMUTED = ("smollm3",)


def write_gguf(path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """`tensors` by transformers' names, float32."""
    arch = config["model_type"].removesuffix("_text")
    writer = gguf.GGUFWriter(path, arch)
    for key, name in _SIZES.items():
        if key in config:
            writer.add_uint32(f"{arch}.{name}", config[key])
    for key, name in _NUMBERS.items():
        if key in config:
            writer.add_float32(f"{arch}.{name}", config[key])
    scaling = config.get("rope_scaling")
    if scaling:
        writer.add_string(f"{arch}.rope.scaling.type", scaling["rope_type"])
        writer.add_float32(f"{arch}.rope.scaling.factor", scaling["factor"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, values in tensors.items():
        part = name.split(".")[-2]
        if arch.startswith("gemma") and part.endswith("norm"):
            values = values + np.float32(1)
        if arch in _PERMUTED and part in heads:
            values = permute(values, heads[part])
        writer.add_tensor(_gguf_name(name, _OWN_NAMES.get(arch, {})), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str, own: Mapping[str, str]) -> str:
    names = {**NAMES, **own}
    module, _, suffix = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, layer, part = module.split(".", 3)
        return f"blk.{layer}.{names[part]}.{suffix}"
    return f"{names[module]}.{suffix}"
