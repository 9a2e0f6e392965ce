"""A model in a GGUF file: its metadata in a Hugging Face config's terms, its tensors as weights.

Owns: the names of llama.cpp's metadata; the undoing of its row order for q and k.
Does not know: the container (gguf), arithmetic (quant), families' details.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from octavo.model.errors import ModelError
from octavo.model.families.family import Family
from octavo.model.gguf import Header, TensorEntry
from octavo.model.mapped import MappedFiles
from octavo.model.places import Place, file_shapes, find_places, flat_shape, span, take
from octavo.model.quant import dequantize
from octavo.model.spec import DecoderSpec
from octavo.model.weights import Checkpoint, check_tensors, expected_shapes
from octavo.ops import RawWeight

log = logging.getLogger(__name__)

_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "alibi_bias_max": "attention.max_alibi_bias",
    "clip_qkv": "attention.clamp_kqv",
    "use_parallel_residual": "use_parallel_residual",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_local_base_freq": "rope.freq_base_swa",
}
_SCALING = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "attention_factor": "attn_factor",
}
_ROPE_FREQS = "rope_freqs.weight"
_ROPE_FACTORS = {
    "long_factor": "rope_factors_long.weight",
    "short_factor": "rope_factors_short.weight",
}
_OF_ROPE = frozenset({_ROPE_FREQS, *_ROPE_FACTORS.values()})
"""Tensors that belong to the configuration."""
_VIEWS = {"F32": ("f32", "<f4"), "F16": ("f16", "<f2"), "BF16": ("bf16", "<u2")}
"""Plain types: the format of a RawWeight, and numpy's."""

END_TEXTS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
        "<EOT>", "<|end_of_text|>", "<|return|>", "</s>",
    }
)  # fmt: skip
"""Control tokens that end a turn, as llama.cpp knows them by their text."""
_CONTROL, _USER_DEFINED = 3, 4
"""Values of tokenizer.ggml.token_type."""


def hf_config(header: Header) -> dict[str, Any]:
    """The metadata of `header` under the names that a config.json has.

    Raises ModelError for what has no counterpart.
    """
    meta, tensors = header.metadata, header.tensors
    arch = meta.get("general.architecture")
    config: dict[str, Any] = {}
    for key, name in _KEYS.items():
        if f"{arch}.{name}" in meta:
            config[key] = _uniform(header, f"{arch}.{name}")
    for key in ("sliding_window", "clip_qkv"):
        config[key] = config.get(key) or None  # 0 says that there is none
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{header.path}: tensor token_embd.weight is missing", "bad_tensors")
    rows = embedding.shape[0]
    config["vocab_size"] = rows
    config["vocab_used"] = _vocab_used(header, rows)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    biased = {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"}
    config["attention_bias"] = not biased.isdisjoint(tensors)
    config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    config |= _window_pattern(meta.get(f"{arch}.attention.sliding_window_pattern"))
    config["rope_theta"] = meta.get(f"{arch}.rope.freq_base")
    config["norm_of_attention"] = "blk.0.attn_norm_2.weight" in tensors  # Falcon 40B's second one
    config["rope_scaling"] = _rope_scaling(header, f"{arch}.rope.")
    _check_rope_dimension(header, f"{arch}.rope.dimension_count", config)
    return config


def _vocab_used(header: Header, rows: int) -> int:
    """How many of the embedding's `rows` have a token. Raises ModelError where tokens that texts
    are made of have no row; control tokens without one only earn a warning: they cannot be used."""
    meta = header.metadata
    tokens = len(meta.get("tokenizer.ggml.tokens", ()))
    kinds = meta.get("tokenizer.ggml.token_type", ())
    if tokens <= rows:
        return tokens or rows
    if any(kind not in (_CONTROL, _USER_DEFINED) for kind in kinds[rows:] or (None,)):
        raise ModelError(
            f"{header.path}: the tokenizer has {tokens} tokens, but token_embd.weight has {rows} "
            "rows",
            "vocabulary_mismatch",
            "The tokenizer belongs to another model: convert the model again.",
        )
    log.warning(
        "%s: %d added tokens (from id %d) have no row in the embedding: not usable",
        header.path, tokens - rows, rows,
    )  # fmt: skip
    return rows


def _window_pattern(value: Any) -> dict[str, Any]:
    """Which layers have a window: the period of those that have none, or yes and no for each."""
    if isinstance(value, list):
        return {"layer_types": ["sliding_attention" if on else "full_attention" for on in value]}
    return {} if value is None else {"sliding_window_pattern": value}


def _uniform(header: Header, key: str) -> Any:
    """A value that may be given for each layer, as long as it is the same for all."""
    value = header.metadata[key]
    if not isinstance(value, list):
        return value
    if len(set(map(repr, value))) != 1:
        raise ModelError(f"{header.path}: {key} differs between layers", "unsupported_feature")
    return value[0]


def _rope_scaling(header: Header, at: str) -> dict[str, Any] | None:
    meta = header.metadata
    kind = meta.get(f"{at}scaling.type")
    factors = {
        key: list(_positive(header, name))
        for key, name in _ROPE_FACTORS.items()
        if name in header.tensors
    }
    if factors:  # what says longrope in these files
        kind = "longrope"
    if kind is None and f"{at}scale_linear" in meta:
        return {"rope_type": "linear", "factor": meta[f"{at}scale_linear"]}
    if kind in (None, "none"):
        return None
    scaling = {
        key: meta[f"{at}scaling.{name}"]
        for key, name in _SCALING.items()
        if f"{at}scaling.{name}" in meta
    }
    return {"rope_type": kind, **scaling, **factors}


def _check_rope_dimension(header: Header, key: str, config: dict[str, Any]) -> None:
    """The rotary part of a head."""
    rotary, head_dim = header.metadata.get(key), config.get("head_dim")
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    if isinstance(rotary, int) and isinstance(head_dim, int) and head_dim > 0:
        part = rotary / head_dim
        exact = int(head_dim * part) == rotary
        config["partial_rotary_factor"] = part if exact else math.nextafter(part, math.inf)


def rope_divisors(header: Header) -> tuple[float, ...]:
    """`rope_freqs.weight`: what LLaMA 3 files divide the frequencies by."""
    return _positive(header, _ROPE_FREQS) if _ROPE_FREQS in header.tensors else ()


def _positive(header: Header, name: str) -> tuple[float, ...]:
    entry = header.tensors[name]
    values = dequantize(entry.type, _rows(entry, MappedFiles()), entry.shape).reshape(-1)
    if not np.all(np.isfinite(values) & (values > 0)):
        raise ModelError(f"{header.path}: {name} holds values that are not positive", "bad_rope")
    return tuple(float(value) for value in values)


def end_tokens(meta: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end a generation: those named so, and control tokens known by their text."""
    named = [meta.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    found = {token for token in named if isinstance(token, int)}
    tokens, kinds = meta.get("tokenizer.ggml.tokens", []), meta.get("tokenizer.ggml.token_type", [])
    found.update(
        i
        for i, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == _CONTROL and text in END_TEXTS
    )
    return tuple(sorted(found))


def quantization(header: Header) -> str:
    """The type that most weights have, e.g. "Q4_1"; "none" for plain floats."""
    sizes: dict[str, int] = {}
    for entry in header.tensors.values():
        if len(entry.shape) > 1:
            sizes[entry.type] = sizes.get(entry.type, 0) + entry.size
    kind = max(sizes, key=sizes.__getitem__, default="F32")
    return "none" if kind in _VIEWS else kind


def check(header: Header, spec: DecoderSpec, family: Family) -> dict[str, Place]:
    """The place of each canonical tensor, after one check of all names and shapes."""
    places = find_places(spec, expected_shapes(spec), family.gguf_names)
    wanted = file_shapes(places)
    found = {
        name: _whole_shape(entry.shape, wanted.get(name))
        for name, entry in header.tensors.items()
        if name not in _OF_ROPE
    }
    check_tensors(header.path, wanted, found)
    return places


def _whole_shape(shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    """`shape` with the leading 1 that GGUF leaves out."""
    return wanted if wanted == (1, *shape) else shape


def formats(header: Header, places: Mapping[str, Place]) -> dict[str, str]:
    """Canonical name -> `RawWeight.format`."""
    kinds = {name: header.tensors[place.file].type for name, place in places.items()}
    return {name: _VIEWS.get(kind, (f"gguf:{kind}", ""))[0] for name, kind in kinds.items()}


def open_weights(header: Header, spec: DecoderSpec, family: Family) -> Checkpoint:
    """The tensors of `header`, checked against `spec`, mapped and not read."""
    places = check(header, spec, family)
    files = MappedFiles()

    def make(canonical: str, place: Place) -> RawWeight:
        entry = header.tensors[place.file]
        shape = flat_shape(place, entry.shape)
        if place.rows is None:
            shape = _whole_shape(shape, place.shape)
        entry = replace(entry, shape=shape)
        rows = _rows(entry, files)
        if family.gguf_permuted:
            rows = _restore_order(canonical, rows, spec)
        return take(_raw_weight(canonical, entry, rows), place)

    def forget(canonical: str) -> None:
        place = places[canonical]
        entry = header.tensors[place.file]
        first, size = span(place, entry.shape, entry.size)
        files.forget(entry.path, entry.offset + first, size)

    return Checkpoint({name: partial(make, name, place) for name, place in places.items()}, forget)


def _rows(entry: TensorEntry, files: MappedFiles) -> Any:
    """The bytes of a tensor as (outputs, bytes of a row), mapped."""
    data = files.view(entry.path, entry.offset, entry.size)
    return data.reshape(*entry.shape[:-1], -1)


def _raw_weight(canonical: str, entry: TensorEntry, rows: Any) -> RawWeight:
    label, dtype = _VIEWS.get(entry.type, (f"gguf:{entry.type}", "u1"))
    vector = len(entry.shape) == 1 and entry.type in _VIEWS
    shape = (rows.size // np.dtype(dtype).itemsize,) if vector else (len(rows), *entry.shape[1:])
    if len(entry.shape) == 1 and not vector:
        shape = entry.shape

    def some(index: Any) -> RawWeight:
        chosen = rows.view(dtype)[index].view("u1") if vector else rows[index]
        return _raw_weight(canonical, entry, chosen)

    return RawWeight(
        canonical,
        shape,
        label,
        rows.view(dtype),
        lambda: dequantize(entry.type, rows, shape),
        lambda begin, end: dequantize(entry.type, rows[begin:end], (end - begin, *shape[1:])),
        some,
    )


def _restore_order(canonical: str, rows: Any, spec: DecoderSpec) -> Any:
    """Rows of q and k (and of their biases) as transformers keeps them.

    llama.cpp keeps a head's row pairs (j, j + half) side by side, for interleaved rope. Whole rows
    move, so this loses nothing on quantised ones. It copies: a few per cent of the file.
    """
    part = canonical.removesuffix(".bias")
    if not part.startswith("layers.") or part.rpartition(".")[2] not in ("q", "k"):
        return rows
    attention = spec.layers[int(part.split(".")[1])].attention
    heads = attention.heads if part.endswith(".q") else attention.kv_heads
    half = attention.head_dim // 2
    order = np.arange(heads * attention.head_dim).reshape(heads, half, 2).swapaxes(1, 2).reshape(-1)
    if canonical.endswith(".bias"):
        width = rows.size // order.size
        return rows.reshape(-1, width)[order].reshape(-1)
    return rows[order]
