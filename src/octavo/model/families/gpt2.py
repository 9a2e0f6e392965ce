"""GPT-2: learned positions, biases everywhere, matrices kept as (inputs, outputs).

Owns: GPT-2's keys and names, and its ways to scale attention.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import GGUF_NAMES, Family, Plan
from octavo.model.families.fields import Fields
from octavo.model.families.layout import fused_qkv
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.places import NameMap
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

_AT = "transformer.h.{i}."
_HF_NAMES: NameMap = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "layers.{i}.attn_norm": _AT + "ln_1",
    "layers.{i}.mlp_norm": _AT + "ln_2",
    **fused_qkv(_AT + "attn.c_attn"),
    "layers.{i}.o": _AT + "attn.c_proj",
    "layers.{i}.up": _AT + "mlp.c_fc",
    "layers.{i}.down": _AT + "mlp.c_proj",
}
_GGUF_NAMES: NameMap = {**GGUF_NAMES, "positions": "position_embd", **fused_qkv("blk.{i}.attn_qkv")}


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.renamed(
        hidden_size="n_embd",
        num_attention_heads="n_head",
        num_hidden_layers="n_layer",
        max_position_embeddings="n_positions",
        intermediate_size="n_inner",
        layer_norm_eps="layer_norm_epsilon",
        hidden_act="activation_function",
    )
    if fields.flag("add_cross_attention"):
        raise fields.unsupported("add_cross_attention", "Decoders without an encoder are.")
    shape, positions = read_shape(fields), fields.size("max_position_embeddings", 1024)
    norm = NormSpec("layer", fields.number("layer_norm_eps", 1e-5), bias=True)
    intermediate = fields.size("intermediate_size", 4 * shape.hidden)
    activation = read_activation(fields, "gelu_new")
    scale = shape.head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx")
    tied = fields.flag("tie_word_embeddings", True)

    def layer(index: int) -> LayerSpec:
        return LayerSpec(
            attention=shape.attention(scale=scale / (index + 1) if by_layer else scale),
            rope=None,
            attn_norm=norm,
            mlp_norm=norm,
            intermediate=intermediate,
            activation=activation,
            qkv_bias=True,
            o_bias=True,
            mlp_bias=True,
        )

    def build(context: int) -> DecoderSpec:
        layers = [layer(i) for i in range(shape.layers)]
        return shape.decoder(layers, norm, tied=tied, positions=positions, context=context)

    return Plan(build, positions)


FAMILY = Family(
    "GPT2LMHeadModel",
    "gpt2",
    "gpt2",
    read,
    hf_names=_HF_NAMES,
    gguf_names=_GGUF_NAMES,
    hf_transposed=("q", "k", "v", "o", "up", "down"),
    hf_ignored=(".attn.bias", ".attn.masked_bias"),
    hf_prefix="transformer.",
    summary="GPT-2: learned positions, biases throughout, matrices kept as (inputs, outputs)",
    context="the rows of its table of positions",
)
