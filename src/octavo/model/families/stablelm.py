"""StableLM: LLaMA's layers with layer norms, rope on a part of each head, optionally parallel.

Owns: the keys in which StableLM differs from its relatives.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import Family, Plan, read_rope
from octavo.model.families.fields import Fields
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.renamed(attention_bias="use_qkv_bias").filled(partial_rotary_factor=0.25)
    if fields.flag("qk_layernorm"):
        raise fields.unsupported("qk_layernorm", "StableLM models without norms of heads are.")
    shape, rope = read_shape(fields), read_rope(fields, divisors)
    norm = NormSpec("layer", fields.number("layer_norm_eps", 1e-5), bias=True)
    activation = read_activation(fields, "silu", gated=True)
    intermediate = fields.size("intermediate_size")
    bias, parallel = fields.flag("attention_bias"), fields.flag("use_parallel_residual")
    tied = fields.flag("tie_word_embeddings")

    def build(context: int) -> DecoderSpec:
        layer = LayerSpec(
            attention=shape.attention(),
            rope=rope.build(context),
            attn_norm=norm,
            mlp_norm=None if parallel else norm,
            intermediate=intermediate,
            activation=activation,
            qkv_bias=bias,
            parallel=parallel,
        )
        return shape.decoder([layer] * shape.layers, norm, tied=tied, context=context)

    return Plan(build, rope.context())


FAMILY = Family(
    "StableLmForCausalLM",
    "stablelm",
    "stablelm",
    read,
    summary="StableLM and StableLM 2: layer norms, rotary positions on a part of each "
    "head, attention and MLP side by side or one after the other",
)
