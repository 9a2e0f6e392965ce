"""Falcon: 7B (one key-value head, one norm a layer), 40B and 11B (groups, attention and MLP side by
side), and falcon-rw (ALiBi, biases, one after the other).

Owns: Falcon's keys and names, the order of its fused queries, keys and values, its ALiBi.
Does not know: files.

The models' own code rounds ALiBi's slopes to bfloat16, and so does this. It also rounds each slope
times a position; that depends on where a sequence begins and is no part of the model: here the
product is exact.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from octavo.model.families.alibi import alibi_slopes
from octavo.model.families.family import GGUF_NAMES, Family, Plan, read_rope
from octavo.model.families.fields import Fields
from octavo.model.families.layout import fused_qkv, qkv_by_group
from octavo.model.families.shape import Shape, read_activation, read_shape
from octavo.model.places import NameMap
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

_AT = "transformer.h.{i}."
_HF_NAMES: NameMap = {
    "embed": "transformer.word_embeddings",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "layers.{i}.attn_norm": _AT + "input_layernorm",
    "layers.{i}.mlp_norm": _AT + "post_attention_layernorm",
    **fused_qkv(_AT + "self_attention.query_key_value", qkv_by_group),
    "layers.{i}.o": _AT + "self_attention.dense",
    "layers.{i}.up": _AT + "mlp.dense_h_to_4h",
    "layers.{i}.down": _AT + "mlp.dense_4h_to_h",
}
_TWO_NORMS = {"layers.{i}.attn_norm": _AT + "ln_attn", "layers.{i}.mlp_norm": _AT + "ln_mlp"}
_GGUF_NAMES: NameMap = {**GGUF_NAMES, **fused_qkv("blk.{i}.attn_qkv")}
_GGUF_TWO_NORMS = {
    "layers.{i}.attn_norm": "blk.{i}.attn_norm_2",
    "layers.{i}.mlp_norm": "blk.{i}.attn_norm",
}


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.renamed(
        intermediate_size="ffn_hidden_size",
        layer_norm_eps="layer_norm_epsilon",
        hidden_act="activation",
        num_key_value_heads="num_kv_heads",
        attention_bias="bias",
    ).filled(max_position_embeddings=2048)
    grouped = fields.flag("new_decoder_architecture")
    if grouped and not fields.flag("parallel_attn", True):
        raise fields.unsupported("parallel_attn", "With new_decoder_architecture it must be true.")
    parallel = fields.flag("parallel_attn", True)
    if fields.gguf:
        two_norms, names = fields.flag("norm_of_attention"), _GGUF_TWO_NORMS
    else:
        two_norms = grouped and fields.size("num_ln_in_parallel_attn", 2, limit=2) == 2
        names = _TWO_NORMS
    shape = _shape(fields, grouped)
    rope = None if fields.flag("alibi") else read_rope(fields, divisors)
    slopes = () if rope else _slopes(shape)
    norm = NormSpec("layer", fields.number("layer_norm_eps", 1e-5), bias=True)
    bias = fields.flag("attention_bias")
    intermediate = fields.size("intermediate_size", 4 * shape.hidden)
    activation = read_activation(fields, "gelu")
    tied = fields.flag("tie_word_embeddings", True)

    def build(context: int) -> DecoderSpec:
        layer = LayerSpec(
            attention=shape.attention(alibi_slopes=slopes),
            rope=rope.build(context) if rope else None,
            attn_norm=norm,
            mlp_norm=norm if two_norms or not parallel else None,
            intermediate=intermediate,
            activation=activation,
            qkv_bias=bias,
            o_bias=bias,
            mlp_bias=bias,
            parallel=parallel,
        )
        return shape.decoder([layer] * shape.layers, norm, tied=tied, context=context)

    longest = rope.context() if rope else fields.size("max_position_embeddings")
    return Plan(build, longest, names if two_norms else {})


def _shape(fields: Fields, grouped: bool) -> Shape:
    """Without groups the number of key-value heads is 1 or that of the queries, whatever
    num_kv_heads says."""
    if grouped or fields.gguf:
        return read_shape(fields)
    shape = read_shape(fields.replaced(num_key_value_heads=None))
    return replace(shape, kv_heads=1) if fields.flag("multi_query", True) else shape


def _slopes(shape: Shape) -> tuple[float, ...]:
    """The bias is added before scores are scaled, so it is scaled with them."""
    scale = shape.head_dim**-0.5
    return tuple(_bfloat16(slope) * scale for slope in alibi_slopes(shape.heads))


def _bfloat16(value: float) -> float:
    """`value` rounded to the nearest bfloat16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


FAMILY = Family(
    "FalconForCausalLM",
    "falcon",
    "falcon",
    read,
    hf_names=_HF_NAMES,
    gguf_names=_GGUF_NAMES,
    hf_prefix="transformer.",
    own_code=("modeling_falcon.FalconForCausalLM",),
    summary="Falcon 7B, 40B, 11B and falcon-rw: attention and MLP side by side or one "
    "after the other, few key-value heads, rotary positions or ALiBi",
)
