"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: LLaMA with fused projections and longrope.

Owns: the keys and names in which Phi-3 differs from its relatives.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import GGUF_NAMES, HF_NAMES, Family, Plan, read_rope
from octavo.model.families.fields import Fields
from octavo.model.families.layout import fused_gate_up, fused_qkv
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.places import NameMap
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

_AT = "model.layers.{i}."
_HF_NAMES: NameMap = {
    **HF_NAMES,
    **fused_qkv(_AT + "self_attn.qkv_proj"),
    **fused_gate_up(_AT + "mlp.gate_up_proj"),
}
_GGUF_NAMES: NameMap = {
    **GGUF_NAMES,
    **fused_qkv("blk.{i}.attn_qkv"),
    **fused_gate_up("blk.{i}.ffn_up"),
}
_LONG = ("longrope", "su", "yarn")
"""Names of longrope in the order of Phi-3's releases: what early files call yarn is not YaRN."""


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    scaling = fields.values.get("rope_scaling")
    if isinstance(scaling, dict) and (scaling.get("rope_type") or scaling.get("type")) in _LONG:
        kinds = {"rope_type": "longrope", "type": "longrope"}
        fields = fields.replaced(rope_scaling={**scaling, **kinds})
        if "original_max_position_embeddings" not in scaling:
            fields = fields.filled(original_max_position_embeddings=4096)
    shape, rope = read_shape(fields), read_rope(fields, divisors)
    norm = NormSpec("rms", fields.number("rms_norm_eps", 1e-5))
    activation = read_activation(fields, "silu", gated=True)
    intermediate = fields.size("intermediate_size")
    window = fields.optional_size("sliding_window") or 0
    tied = fields.flag("tie_word_embeddings")

    def build(context: int) -> DecoderSpec:
        layer = LayerSpec(
            attention=shape.attention(window=window),
            rope=rope.build(context),
            attn_norm=norm,
            mlp_norm=norm,
            intermediate=intermediate,
            activation=activation,
        )
        return shape.decoder([layer] * shape.layers, norm, tied=tied, context=context)

    return Plan(build, rope.context())


FAMILY = Family(
    "Phi3ForCausalLM",
    "phi3",
    "phi3",
    read,
    hf_names=_HF_NAMES,
    gguf_names=_GGUF_NAMES,
    own_code=("modeling_phi3.Phi3ForCausalLM",),
    summary="Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: fused projections, longrope, rotary "
    "positions on a part of each head, sliding window",
)
