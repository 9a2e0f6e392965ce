"""OPT and Galactica: learned positions that begin at row 2, biases, relu.

Owns: OPT's keys and names, and which of its variants are refused.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import Family, Plan
from octavo.model.families.fields import Fields
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.places import NameMap
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

_AT = "model.decoder.layers.{i}."
_HF_NAMES: NameMap = {
    "embed": "model.decoder.embed_tokens",
    "positions": "model.decoder.embed_positions",
    "final_norm": "model.decoder.final_layer_norm",
    "head": "lm_head",
    "layers.{i}.attn_norm": _AT + "self_attn_layer_norm",
    "layers.{i}.mlp_norm": _AT + "final_layer_norm",
    "layers.{i}.q": _AT + "self_attn.q_proj",
    "layers.{i}.k": _AT + "self_attn.k_proj",
    "layers.{i}.v": _AT + "self_attn.v_proj",
    "layers.{i}.o": _AT + "self_attn.out_proj",
    "layers.{i}.up": _AT + "fc1",
    "layers.{i}.down": _AT + "fc2",
}
_FIRST_POSITION = 2
_NORM = NormSpec("layer", 1e-5, bias=True)


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.renamed(intermediate_size="ffn_dim", hidden_act="activation_function")
    if not fields.flag("do_layer_norm_before", True):
        raise fields.unsupported(
            "do_layer_norm_before", "OPT models that norm before attention are: all but opt-350m."
        )
    shape, context = read_shape(fields), fields.size("max_position_embeddings")
    if fields.size("word_embed_proj_dim", shape.hidden) != shape.hidden:
        raise fields.unsupported(
            "word_embed_proj_dim", f"It must be hidden_size, {shape.hidden}: no projections."
        )
    if fields.flag("_remove_final_layer_norm"):
        raise fields.unsupported("_remove_final_layer_norm", "OPT models with a last norm are.")
    if not fields.flag("layer_norm_elementwise_affine", True):
        raise fields.unsupported("layer_norm_elementwise_affine", "Norms with weights are.")
    bias, tied = fields.flag("enable_bias", True), fields.flag("tie_word_embeddings", True)
    layer = LayerSpec(
        attention=shape.attention(),
        rope=None,
        attn_norm=_NORM,
        mlp_norm=_NORM,
        intermediate=fields.size("intermediate_size"),
        activation=read_activation(fields, "relu"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
    )

    def build(_: int) -> DecoderSpec:
        return shape.decoder(
            [layer] * shape.layers,
            _NORM,
            tied=tied,
            positions=context + _FIRST_POSITION,
            position_offset=_FIRST_POSITION,
            context=context,
        )

    return Plan(build, context)


FAMILY = Family(
    "OPTForCausalLM",
    "opt",
    None,
    read,
    hf_names=_HF_NAMES,
    hf_prefix="model.",
    summary="OPT and Galactica: learned positions, with biases or without; not "
    "opt-350m, which norms after attention",
    context="the rows of its table of positions",
)
