"""MPT: ALiBi instead of positions, layer norms and matrices without biases, bounded q, k and v.

Owns: MPT's keys, those inside attn_config among them, and which of their values are refused.
Does not know: files.

It computes what the models' own code does. transformers leaves out attn_config's alibi_bias_max and
kv_n_heads, no_bias: false and logit_scale; with their usual values both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.model.families.alibi import alibi_slopes
from octavo.model.families.family import GGUF_NAMES, Family, Plan
from octavo.model.families.fields import Fields
from octavo.model.families.layout import fused_qkv
from octavo.model.families.shape import read_shape
from octavo.model.places import NameMap
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

_AT = "transformer.blocks.{i}."
_HF_NAMES: NameMap = {
    "embed": "transformer.wte",
    "final_norm": "transformer.norm_f",
    "head": "lm_head",
    "layers.{i}.attn_norm": _AT + "norm_1",
    "layers.{i}.mlp_norm": _AT + "norm_2",
    **fused_qkv(_AT + "attn.Wqkv"),
    "layers.{i}.o": _AT + "attn.out_proj",
    "layers.{i}.up": _AT + "ffn.up_proj",
    "layers.{i}.down": _AT + "ffn.down_proj",
}
_GGUF_NAMES: NameMap = {**GGUF_NAMES, **fused_qkv("blk.{i}.attn_qkv")}

_ALLOWED: Mapping[str, tuple[object, ...]] = {
    "attn_config.alibi": (True, None),
    "attn_config.prefix_lm": (False, None),
    "attn_config.qk_ln": (False, None),
    "attn_config.qk_gn": (False, None),
    "attn_config.rope": (False, None),
    "attn_config.attn_uses_sequence_id": (False, None),
    "attn_config.sliding_window_size": (-1, None),
    "attn_config.attn_impl": ("torch", "flash", "triton", None),
    "attn_config.attn_type": (
        *("multihead_attention", "grouped_query_attention", "multiquery_attention"),
        None,
    ),
    "ffn_config.ffn_type": ("mptmlp", None),
    "ffn_config.ffn_act_fn": ({"name": "gelu"}, None),
    "norm_type": ("low_precision_layernorm", "layernorm", None),
}
"""Values that mean what is computed here; the three `attn_impl` are one function."""


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = _flat(fields).renamed(
        hidden_size="d_model",
        num_attention_heads="n_heads",
        num_hidden_layers="n_layers",
        num_key_value_heads="attn_config.kv_n_heads",
        max_position_embeddings="max_seq_len",
        layer_norm_eps="layer_norm_epsilon",
        alibi_bias_max="attn_config.alibi_bias_max",
        clip_qkv="attn_config.clip_qkv",
        softmax_scale="attn_config.softmax_scale",
        intermediate_size="ffn_config.ffn_hidden_size",
    )
    for key, allowed in _ALLOWED.items():
        if fields.values.get(key) not in allowed:
            named = ", ".join(str(value) for value in allowed if value is not None)
            raise fields.unsupported(key, f"MPT models with {key} {named} are.")
    if fields.values.get("attn_config.attn_type") == "multiquery_attention":
        fields = fields.filled(num_key_value_heads=1)
    shape, context = read_shape(fields), fields.size("max_position_embeddings", 2048)
    bias = fields.flag("attention_bias") if fields.gguf else not fields.flag("no_bias", True)
    norm = NormSpec("layer", fields.number("layer_norm_eps", 1e-5), bias=bias)
    intermediate = fields.optional_size("intermediate_size")
    if intermediate is None:
        intermediate = int(fields.number("expansion_ratio", 4) * shape.hidden)
    scale = fields.number("softmax_scale") if fields.has("softmax_scale") else None
    slopes = alibi_slopes(shape.heads, fields.number("alibi_bias_max", 8.0))
    bound = fields.number("clip_qkv") if fields.has("clip_qkv") else 0.0
    tied, logit_scale = fields.flag("tie_word_embeddings", True), _logit_scale(fields, shape.hidden)
    layer = LayerSpec(
        attention=shape.attention(scale=scale, alibi_slopes=slopes),
        rope=None,
        attn_norm=norm,
        mlp_norm=norm,
        intermediate=intermediate,
        activation="gelu",
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        qkv_bound=bound,
    )

    def build(_: int) -> DecoderSpec:
        layers = [layer] * shape.layers
        return shape.decoder(layers, norm, tied=tied, logit_scale=logit_scale, context=context)

    return Plan(build, context)


def _flat(fields: Fields) -> Fields:
    """The keys of attn_config and ffn_config as "attn_config.alibi" ..."""
    values: dict[str, Any] = dict(fields.values)
    for outer in ("attn_config", "ffn_config"):
        inner = values.pop(outer, None) or {}
        if not isinstance(inner, dict):
            raise fields.bad(outer, inner, "an object")
        values |= {f"{outer}.{key}": value for key, value in inner.items()}
    return replace(fields, values=values)


def _logit_scale(fields: Fields, hidden: int) -> float:
    if fields.values.get("logit_scale") == "inv_sqrt_d_model":
        return float(hidden**-0.5)
    return fields.number("logit_scale", 1.0)


FAMILY = Family(
    "MptForCausalLM",
    "mpt",
    "mpt",
    read,
    hf_names=_HF_NAMES,
    gguf_names=_GGUF_NAMES,
    also=("MPTForCausalLM",),
    own_code=("modeling_mpt.MPTForCausalLM",),
    context="the model's own (tested up to 8,192)",
    summary="MPT: ALiBi instead of positions, q, k and v cut off at clip_qkv, heads in "
    "groups, with biases or without",
)
