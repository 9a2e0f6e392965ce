"""Gemma 2: every other layer with a window, norms before and after, soft-capped scores and logits.

Owns: the keys in which Gemma 2 differs from its relatives.
Does not know: files.
"""

from __future__ import annotations

from typing import Any

from octavo.model.families.family import Family, Plan, read_rope
from octavo.model.families.fields import Fields
from octavo.model.families.gemma import (
    SANDWICH_GGUF,
    SANDWICH_HF,
    embed_scale,
    query_scale,
    read_norm,
    refuse_bidirectional,
)
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.families.windows import read_windows
from octavo.model.spec import DecoderSpec, LayerSpec

_LAYERS_OF_27B = 46


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.renamed(hidden_act="hidden_activation").filled(head_dim=256)
    fields.size("num_key_value_heads")
    refuse_bidirectional(fields)
    shape, rope, norm = read_shape(fields), read_rope(fields, divisors), read_norm(fields)
    activation = read_activation(fields, "gelu_pytorch_tanh", gated=True)
    intermediate = fields.size("intermediate_size")
    bias = fields.flag("attention_bias")
    windows = read_windows(fields, shape.layers, lambda i: i % 2 == 0, 4096)
    scale, softcap = query_scale(fields, _LAYERS_OF_27B), _cap(fields, "attn", 50.0)
    whole: dict[str, Any] = {
        "tied": fields.flag("tie_word_embeddings", True),
        "embed_scale": embed_scale(fields),
        "logit_bound": _cap(fields, "final", 30.0),
    }

    def build(context: int) -> DecoderSpec:
        turned = rope.build(context)
        layers = [
            LayerSpec(
                attention=shape.attention(scale=scale, window=window, softcap=softcap),
                rope=turned,
                attn_norm=norm,
                post_attn_norm=norm,
                mlp_norm=norm,
                post_mlp_norm=norm,
                intermediate=intermediate,
                activation=activation,
                qkv_bias=bias,
                o_bias=bias,
            )
            for window in windows
        ]
        return shape.decoder(layers, norm, **whole, context=context)

    return Plan(build, rope.context())


def _cap(fields: Fields, what: str, default: float) -> float:
    return fields.optional_number(f"{what}_logit_softcapping", default)


FAMILY = Family(
    "Gemma2ForCausalLM",
    "gemma2",
    "gemma2",
    read,
    hf_names=SANDWICH_HF,
    gguf_names=SANDWICH_GGUF,
    summary="Gemma 2: norms before and after, soft-capped scores and logits, a sliding window on "
    "every other layer",
)
