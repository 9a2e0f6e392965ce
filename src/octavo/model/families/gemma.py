"""Gemma 1: LLaMA with a scaled embedding and norms whose weights count from 1.

Owns: what all Gemmas share.
Does not know: files; what came with Gemma 2 and 3.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from octavo.model.errors import ModelError
from octavo.model.families.family import GGUF_NAMES, HF_NAMES, Family, Plan, read_rope
from octavo.model.families.fields import Fields
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

SANDWICH_HF = {
    **HF_NAMES,
    "layers.{i}.post_attn_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.{i}.mlp_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "layers.{i}.post_mlp_norm": "model.layers.{i}.post_feedforward_layernorm",
}
SANDWICH_GGUF = {
    **GGUF_NAMES,
    "layers.{i}.post_attn_norm": "blk.{i}.post_attention_norm",
    "layers.{i}.post_mlp_norm": "blk.{i}.post_ffw_norm",
}
"""Names where what a layer adds is normed too (Gemma 2 and 3)."""


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.filled(head_dim=256)
    fields.size("num_key_value_heads")
    refuse_bidirectional(fields)
    if fields.has("hidden_act") and fields.text("hidden_act") == "gelu":
        # The makers' own configs say so and mean the approximation.
        fields = replace(fields, values={**fields.values, "hidden_act": "gelu_pytorch_tanh"})
    shape, rope, norm = read_shape(fields), read_rope(fields, divisors), read_norm(fields)
    activation = read_activation(fields, "gelu_pytorch_tanh", gated=True)
    intermediate = fields.size("intermediate_size")
    bias = fields.flag("attention_bias")
    tied, scale = fields.flag("tie_word_embeddings", True), embed_scale(fields)

    def build(context: int) -> DecoderSpec:
        layer = LayerSpec(
            attention=shape.attention(),
            rope=rope.build(context),
            attn_norm=norm,
            mlp_norm=norm,
            intermediate=intermediate,
            activation=activation,
            qkv_bias=bias,
            o_bias=bias,
        )
        return shape.decoder(
            [layer] * shape.layers, norm, tied=tied, embed_scale=scale, context=context
        )

    return Plan(build, rope.context())


def read_norm(fields: Fields) -> NormSpec:
    """Checkpoints keep what is to be added to 1; GGUF files the sum."""
    offset = 0.0 if fields.gguf else 1.0
    return NormSpec("rms", fields.number("rms_norm_eps", 1e-6), weight_offset=offset)


def embed_scale(fields: Fields) -> float:
    """The root of the hidden size, rounded to the checkpoint's own type as in training."""
    root = float(fields.size("hidden_size") ** 0.5)
    dtype = fields.values.get("dtype") or fields.values.get("torch_dtype")
    if dtype == "float16":
        (rounded,) = struct.unpack("<e", struct.pack("<e", root))
        return float(rounded)
    if dtype == "bfloat16":
        (bits,) = struct.unpack("<I", struct.pack("<f", root))
        bits += 0x7FFF + (bits >> 16 & 1)
        (rounded,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
        return float(rounded)
    return root


def query_scale(fields: Fields, layers_of_largest: int) -> float:
    """One over the root of `query_pre_attn_scalar`. GGUF files leave it out: there the largest
    model is told by its layers; it divides the hidden size among the heads, the others take a
    head's width."""
    scalar = 256.0
    if fields.gguf:
        shape = read_shape(fields)
        largest = shape.layers == layers_of_largest
        scalar = shape.hidden / shape.heads if largest else float(shape.head_dim)
    return float(fields.number("query_pre_attn_scalar", scalar) ** -0.5)


def refuse_bidirectional(fields: Fields) -> None:
    if fields.flag("use_bidirectional_attention"):
        raise ModelError(
            f"{fields.origin}: use_bidirectional_attention is true: the model embeds text and "
            "generates none",
            "unsupported_feature",
            "Use a Gemma that generates text.",
        )


FAMILY = Family(
    "GemmaForCausalLM",
    "gemma",
    "gemma",
    read,
    summary="Gemma 1: scaled embedding that is the head too, norms that count from 1",
)
