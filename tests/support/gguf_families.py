"""Tiny checkpoints of families beyond LLaMA as GGUF, the way llama.cpp's converter makes them.

Owns: metadata and rows of mpt, gpt2, falcon, gptneox, phi3 and stablelm. Names of tensors come from
the gguf package's own tables.
Does not know: Octavo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from support import gguf_files

Config = Mapping[str, Any]
Tensors = dict[str, np.ndarray]

ARCHITECTURES = {
    "mpt": gguf.MODEL_ARCH.MPT,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "falcon": gguf.MODEL_ARCH.FALCON,
    "gptneox": gguf.MODEL_ARCH.GPTNEOX,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
}


def convert(
    path: Path,
    config: Config,
    tensors: Tensors,
    types: Mapping[str, Type] | None = None,
    *,
    metadata: Config | None = None,
) -> Path:
    """`types` by ending of a GGUF name; the rest is F32. `metadata` replaces some, by the names
    that follow the architecture's."""
    arch = config["model_type"].replace("gpt_neox", "gptneox")
    described, layers, extra = _DESCRIPTIONS[arch](config)
    names = gguf.get_tensor_name_map(ARCHITECTURES[arch], layers)
    found: dict[str, tuple[np.ndarray, Type]] = {}
    for name, values in tensors.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new is not None, name
        kind = next((k for end, k in (types or {}).items() if new.endswith(end)), Type.F32)
        found[new] = (_rows(arch, config, name, values), kind)
    found |= {name: (values, Type.F32) for name, values in extra.items()}
    fields = {f"{arch}.{key}": value for key, value in (described | dict(metadata or {})).items()}
    return gguf_files.write(path, arch, fields, found)


def _rows(arch: str, config: Config, name: str, values: np.ndarray) -> np.ndarray:
    if arch == "gpt2" and values.ndim == 2 and ".h." in name:
        return values.T
    if "query_key_value" not in name:
        return values
    heads = config["num_attention_heads"]
    kv_heads = _kv_heads(config) if arch == "falcon" else heads
    width = config["hidden_size"] // heads
    by_group = values.reshape(kv_heads, heads // kv_heads + 2, width, -1)
    stacked = [by_group[:, :-2], by_group[:, -2:-1], by_group[:, -1:]]
    whole = np.concatenate([part.reshape(-1, by_group.shape[-1]) for part in stacked])
    return whole.reshape(values.shape)


def _kv_heads(config: Config) -> int:
    if config.get("new_decoder_architecture"):
        return int(config["num_kv_heads"])
    return 1 if config.get("multi_query", True) else int(config["num_attention_heads"])


def _mpt(config: Config) -> tuple[dict[str, Any], int, Tensors]:
    attention = config["attn_config"]
    metadata = {
        "context_length": config["max_seq_len"],
        "embedding_length": config["d_model"],
        "block_count": config["n_layers"],
        "feed_forward_length": 4 * config["d_model"],
        "attention.head_count": config["n_heads"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "attention.clamp_kqv": attention.get("clip_qkv"),
        "attention.max_alibi_bias": float(attention["alibi_bias_max"]),
    }
    return metadata, config["n_layers"], {}


def _gpt2(config: Config) -> tuple[dict[str, Any], int, Tensors]:
    metadata = {
        "block_count": config["n_layer"],
        "context_length": config["n_positions"],
        "embedding_length": config["n_embd"],
        "feed_forward_length": config.get("n_inner") or 4 * config["n_embd"],
        "attention.head_count": config["n_head"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
    }
    return metadata, config["n_layer"], {}


def _falcon(config: Config) -> tuple[dict[str, Any], int, Tensors]:
    metadata = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("ffn_hidden_size") or 4 * config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": _kv_heads(config),
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "rope.freq_base": config.get("rope_theta"),
    }
    return metadata, config["num_hidden_layers"], {}


def _gptneox(config: Config) -> tuple[dict[str, Any], int, Tensors]:
    width = config["hidden_size"] // config["num_attention_heads"]
    metadata = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": int(config["rotary_pct"] * width),
        "rope.freq_base": float(config["rotary_emb_base"]),
        "attention.head_count": config["num_attention_heads"],
        "use_parallel_residual": config.get("use_parallel_residual", True),
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
    }
    return metadata, config["num_hidden_layers"], {}


def _phi3(config: Config) -> tuple[dict[str, Any], int, Tensors]:
    longest, width = config["max_position_embeddings"], config["hidden_size"]
    original = config.get("original_max_position_embeddings", 4096)
    heads, scaling = config["num_attention_heads"], config.get("rope_scaling")
    metadata = {
        "context_length": longest,
        "rope.scaling.original_context_length": original,
        "embedding_length": width,
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.dimension_count": int(config.get("partial_rotary_factor", 1.0) * width) // heads,
        "rope.freq_base": config["rope_theta"],
        "attention.sliding_window": config.get("sliding_window") or 0,
    }
    if scaling is None:
        return metadata, config["num_hidden_layers"], {}
    stretch = math.log(longest / original) / math.log(original)
    metadata["rope.scaling.attn_factor"] = math.sqrt(1 + stretch)
    factors = {
        f"rope_factors_{kind}.weight": np.array(scaling[f"{kind}_factor"], np.float32)
        for kind in ("long", "short")
    }
    return metadata, config["num_hidden_layers"], factors


def _stablelm(config: Config) -> tuple[dict[str, Any], int, Tensors]:
    width = config["hidden_size"] // config["num_attention_heads"]
    metadata = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": int(config.get("partial_rotary_factor", 0.25) * width),
        "rope.freq_base": config["rope_theta"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "use_parallel_residual": config.get("use_parallel_residual", False),
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
    }
    return metadata, config["num_hidden_layers"], {}


_DESCRIPTIONS: dict[str, Callable[[Config], tuple[dict[str, Any], int, Tensors]]] = {
    "mpt": _mpt,
    "gpt2": _gpt2,
    "falcon": _falcon,
    "gptneox": _gptneox,
    "phi3": _phi3,
    "stablelm": _stablelm,
}
