"""GPT-J: attention and MLP side by side under one norm, rope of neighbouring dimensions.

Owns: GPT-J's keys and names.
Does not know: files.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.model.families.family import Family, Plan, read_rope
from octavo.model.families.fields import Fields
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.places import NameMap
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

_AT = "transformer.h.{i}."
_HF_NAMES: NameMap = {
    "embed": "transformer.wte",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "layers.{i}.attn_norm": _AT + "ln_1",
    "layers.{i}.q": _AT + "attn.q_proj",
    "layers.{i}.k": _AT + "attn.k_proj",
    "layers.{i}.v": _AT + "attn.v_proj",
    "layers.{i}.o": _AT + "attn.out_proj",
    "layers.{i}.up": _AT + "mlp.fc_in",
    "layers.{i}.down": _AT + "mlp.fc_out",
}


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.renamed(
        hidden_size="n_embd",
        num_attention_heads="n_head",
        num_hidden_layers="n_layer",
        max_position_embeddings="n_positions",
        intermediate_size="n_inner",
        layer_norm_eps="layer_norm_epsilon",
        hidden_act="activation_function",
    ).filled(max_position_embeddings=2048)
    if fields.flag("tie_word_embeddings"):
        raise fields.unsupported("tie_word_embeddings", "GPT-J's head has a bias of its own.")
    shape, rotary = read_shape(fields), fields.size("rotary_dim", 64)
    if rotary % 2 or rotary > shape.head_dim:
        raise fields.bad("rotary_dim", rotary, f"an even number, at most {shape.head_dim}")
    rope = replace(read_rope(fields, divisors), rotary_dim=rotary)
    norm = NormSpec("layer", fields.number("layer_norm_eps", 1e-5), bias=True)
    activation = read_activation(fields, "gelu_new")
    intermediate = fields.size("intermediate_size", 4 * shape.hidden)

    def build(context: int) -> DecoderSpec:
        layer = LayerSpec(
            attention=shape.attention(),
            rope=replace(rope.build(context), interleaved=True),
            attn_norm=norm,
            mlp_norm=None,
            intermediate=intermediate,
            activation=activation,
            mlp_bias=True,
            parallel=True,
        )
        return shape.decoder(
            [layer] * shape.layers, norm, tied=False, head_bias=True, context=context
        )

    return Plan(build, rope.context())


FAMILY = Family(
    "GPTJForCausalLM",
    "gptj",
    None,
    read,
    hf_names=_HF_NAMES,
    hf_ignored=(".attn.bias", ".attn.masked_bias"),
    hf_prefix="transformer.",
    summary="GPT-J: attention and MLP side by side under one norm, rotary positions of "
    "neighbouring dimensions",
)
