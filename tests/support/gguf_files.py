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
    raw: Mapping[str, tuple[np.ndarray, Type]] | None = None,
    **options: Any,
) -> Path:
    """A checkpoint as GGUF: matrices in `types` (by GGUF name) or `default`, vectors in F32.

    `metadata` adds or (None) removes keys; `extra` adds tensors; `tokens` adds a vocabulary; `raw`
    gives tensors' blocks as they shall stand in the file. `options` are GGUFWriter's.
    """
    arch = config["model_type"]
    writer = gguf.GGUFWriter(path, arch, **options)
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
        if raw and gguf_name(name) in raw:
            blocks, kind = raw[gguf_name(name)]
            plain = kind in (Type.F32, Type.F16)
            writer.add_tensor(gguf_name(name), blocks, raw_dtype=None if plain else kind)
            continue
        if arch == "llama" and "q_proj" in name:
            values = permute(values, heads)
        elif arch == "llama" and "k_proj" in name:
            values = permute(values, kv_heads)
        kind = Type.F32 if values.ndim == 1 else (types or {}).get(gguf_name(name), default)
        _tensor(writer, gguf_name(name), values, kind)
    for name, values in (extra or {}).items():
        _tensor(writer, name, values, Type.F32)
    _finish(writer)
    return path


def write(
    path: Path, arch: str, fields: Mapping[str, Any], tensors: Mapping[str, tuple[np.ndarray, Type]]
) -> Path:
    """A file of those metadata (None: left out), and tensors in those types."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in fields.items():
        if value is not None:
            _add(writer, key, value)
    for name, (values, kind) in tensors.items():
        _tensor(writer, name, values, kind)
    _finish(writer)
    return path


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ1_S"), (0,)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
"""Where the float16 scales of a block begin."""


def random_blocks(kind: Type, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """(rows, bytes of a row) of random blocks with scales as quantisers write them: finite, small.
    For F32 and F16 the values themselves."""
    rng = np.random.default_rng([seed, int(kind)])
    if kind in (Type.F32, Type.F16):
        plain = rng.normal(0, 0.05, (rows, width))
        return plain.astype(np.float32 if kind == Type.F32 else np.float16)
    if kind == Type.BF16:
        return gguf.quants.quantize(rng.normal(0, 0.05, (rows, width)).astype(np.float32), kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * width // block, size), dtype=np.uint8)
    scales = rng.uniform(0.002, 0.02, len(blocks)).astype(np.float16).view(np.uint8)
    for at in _SCALES.get(kind.name, ()):
        blocks[:, at : at + 2] = scales.reshape(-1, 2)
    if kind.name == "MXFP4":
        blocks[:, 0] = 120
    if kind.name == "NVFP4":
        blocks[:, :4] = rng.integers(8, 40, (len(blocks), 4))
    if kind.name == "IQ1_M":  # the scale's nibbles are the top ones of four words
        scales = scales.view(np.uint16)
        words = blocks[:, 48:].view(np.uint16)
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | ((scales >> (4 * i)) & 15) << 12
    return blocks.reshape(rows, -1)


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
