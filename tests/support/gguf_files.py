"""GGUF files made in the tests: small real ones with the `gguf` package, broken ones by hand.

Owns: the conversion of a Hugging Face checkpoint to GGUF (an implementation of its own, after
llama.cpp's convert_hf_to_gguf.py), and raw headers.
Does not know: Octavo.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}


def gguf_name(name: str) -> str:
    module, _, suffix = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, layer, part = module.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{suffix}"
    return f"{NAMES[module]}.{suffix}"


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """Row pairs (j, j + half) of each head side by side, as llama.cpp keeps q and k."""
    shape = weights.shape
    split = weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return split.swapaxes(1, 2).reshape(shape)


def convert(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    types: Mapping[str, Type] | None = None,
    default: Type = Type.F32,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    tokens: int | None = None,
) -> Path:
    """A checkpoint as GGUF: matrices in `types` (by GGUF name) or `default`, vectors in F32.

    `metadata` adds or (None) removes keys; `extra` adds tensors; `tokens` adds a vocabulary.
    """
    arch = config["model_type"]
    writer = gguf.GGUFWriter(path, arch)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    fields: dict[str, Any] = {
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
    }
    if "rope_theta" in config:
        fields[f"{arch}.rope.freq_base"] = float(config["rope_theta"])
    if "head_dim" in config:
        fields[f"{arch}.attention.key_length"] = config["head_dim"]
        fields[f"{arch}.attention.value_length"] = config["head_dim"]
    if tokens is not None:
        fields["tokenizer.ggml.model"] = "gpt2"
        fields["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(tokens)]
        fields["tokenizer.ggml.token_type"] = [1] * tokens
    fields.update(metadata or {})
    for key, value in fields.items():
        if value is not None:
            _add(writer, key, value)
    for name, values in tensors.items():
        if arch == "llama" and "q_proj" in name:
            values = permute(values, heads)
        elif arch == "llama" and "k_proj" in name:
            values = permute(values, kv_heads)
        kind = Type.F32 if values.ndim == 1 else (types or {}).get(gguf_name(name), default)
        _tensor(writer, gguf_name(name), values, kind)
    for name, values in (extra or {}).items():
        _tensor(writer, name, values, Type.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: Type) -> None:
    if kind in (Type.F32, Type.F16):
        values = values.astype(np.float32 if kind == Type.F32 else np.float16)
        writer.add_tensor(name, np.ascontiguousarray(values))
    else:
        data = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(name, data, raw_dtype=kind)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    head = string(name) + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


def header(
    entries: list[bytes] = (),  # type: ignore[assignment]
    tensors: list[bytes] = (),  # type: ignore[assignment]
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    counts: tuple[int, int] | None = None,
    data: bytes = b"",
) -> bytes:
    """A GGUF file from its raw parts; `counts` (tensors, entries) may lie."""
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    raw = magic + version + struct.pack("<QQ", tensor_count, entry_count)
    raw += b"".join(entries) + b"".join(tensors)
    return raw + b"\0" * (-len(raw) % 32) + data
