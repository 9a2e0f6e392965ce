"""GPT-NeoX and Pythia: attention and MLP side by side, rope on a part of each head, biases.

Owns: NeoX's keys and names, and the order of its fused queries, keys and values.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import GGUF_NAMES, Family, Plan, read_rope
from octavo.model.families.fields import Fields
from octavo.model.families.layout import fused_qkv, qkv_by_group
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.places import NameMap
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

_AT = "gpt_neox.layers.{i}."
_HF_NAMES: NameMap = {
    "embed": "gpt_neox.embed_in",
    "final_norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
    "layers.{i}.attn_norm": _AT + "input_layernorm",
    "layers.{i}.mlp_norm": _AT + "post_attention_layernorm",
    **fused_qkv(_AT + "attention.query_key_value", qkv_by_group),
    "layers.{i}.o": _AT + "attention.dense",
    "layers.{i}.up": _AT + "mlp.dense_h_to_4h",
    "layers.{i}.down": _AT + "mlp.dense_4h_to_h",
}
_GGUF_NAMES: NameMap = {**GGUF_NAMES, **fused_qkv("blk.{i}.attn_qkv")}


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.renamed(rope_theta="rotary_emb_base", partial_rotary_factor="rotary_pct")
    fields = fields.filled(partial_rotary_factor=0.25)
    shape = read_shape(fields)
    rope = read_rope(fields, divisors)
    bias = fields.flag("attention_bias", True)
    activation = read_activation(fields, "gelu")
    norm = NormSpec("layer", fields.number("layer_norm_eps", 1e-5), bias=True)
    intermediate = fields.size("intermediate_size")
    parallel = fields.flag("use_parallel_residual", True)
    tied = fields.flag("tie_word_embeddings")

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
            mlp_bias=True,
            parallel=parallel,
        )
        return shape.decoder([layer] * shape.layers, norm, tied=tied, context=context)

    return Plan(build, rope.context())


FAMILY = Family(
    "GPTNeoXForCausalLM",
    "gpt_neox",
    "gptneox",
    read,
    hf_names=_HF_NAMES,
    gguf_names=_GGUF_NAMES,
    hf_ignored=(".attention.bias", ".attention.masked_bias"),
    context="the model's own (tested up to 4,096)",
    summary="GPT-NeoX and Pythia: attention and MLP side by side (parallel residual), rotary "
    "positions on a part of each head, layer norms, biases throughout",
)
