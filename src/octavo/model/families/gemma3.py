"""Gemma 3, the text of it: normed heads; one layer in six sees everything and has its own rope.

Owns: the keys in which Gemma 3 differs from its relatives, in both their spellings.
Does not know: files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.model.families.family import Family, Plan, TextPart
from octavo.model.families.fields import Fields
from octavo.model.families.gemma import (
    SANDWICH_GGUF,
    SANDWICH_HF,
    embed_scale,
    query_scale,
    read_norm,
    refuse_bidirectional,
)
from octavo.model.families.shape import Shape, read_activation, read_shape
from octavo.model.families.windows import FULL, SLIDING, read_windows
from octavo.model.rope import RopeConfig, parse_rope
from octavo.model.spec import DecoderSpec, LayerSpec

_LAYERS_OF_27B = 62
_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "hidden_act": "gelu_pytorch_tanh",
    "sliding_window": 4096,
}
"""The makers' configs leave out what is as in transformers."""
_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields = fields.renamed(hidden_act="hidden_activation").filled(**_DEFAULTS)
    refuse_bidirectional(fields)
    shape, norm = read_shape(fields), read_norm(fields)
    everywhere, local = _ropes(fields, shape, divisors)
    activation = read_activation(fields, gated=True)
    intermediate = fields.size("intermediate_size")
    bias = fields.flag("attention_bias")
    period = fields.size("sliding_window_pattern", 6)
    windows = read_windows(fields, shape.layers, lambda i: (i + 1) % period != 0)
    scale = query_scale(fields, _LAYERS_OF_27B)
    whole: dict[str, Any] = {
        "tied": fields.flag("tie_word_embeddings", True),
        "embed_scale": embed_scale(fields),
        "logit_bound": fields.optional_number("final_logit_softcapping", 0.0),
    }

    def build(context: int) -> DecoderSpec:
        turned, turned_locally = everywhere.build(context), local.build(context)
        layers = [
            LayerSpec(
                attention=shape.attention(scale=scale, window=window),
                rope=turned_locally if window else turned,
                attn_norm=norm,
                post_attn_norm=norm,
                mlp_norm=norm,
                post_mlp_norm=norm,
                intermediate=intermediate,
                activation=activation,
                qkv_bias=bias,
                o_bias=bias,
                q_norm=norm,
                k_norm=norm,
            )
            for window in windows
        ]
        return shape.decoder(layers, norm, **whole, context=context)

    # Not rope's word: here max_position_embeddings has the factor in it already.
    return Plan(build, fields.size("max_position_embeddings"))


def _ropes(
    fields: Fields, shape: Shape, divisors: tuple[float, ...]
) -> tuple[RopeConfig, RopeConfig]:
    """Of layers that see everything, and of those with a window.

    Old spelling: rope_theta and rope_scaling for the former, rope_local_base_freq for the latter.
    New: rope_parameters with an object for each type of layer.
    """
    parameters = fields.values.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or parameters.keys() - {FULL, SLIDING}:
        raise fields.bad("rope_parameters", parameters, f"an object with {FULL} and {SLIDING}")
    position = {"max_position_embeddings": fields.size("max_position_embeddings")}
    for_all: dict[str, Any] = {
        **position,
        "rope_theta": fields.number("rope_theta", _THETA),
        "rope_scaling": fields.values.get("rope_scaling"),
        "rope_parameters": parameters.get(FULL),
    }
    local: dict[str, Any] = {
        **position,
        "rope_theta": fields.number("rope_local_base_freq", _LOCAL_THETA),
        "rope_parameters": parameters.get(SLIDING),
    }
    return parse_rope(for_all, shape.head_dim, divisors), parse_rope(local, shape.head_dim)


_PICTURES = ("vision_tower.", "multi_modal_projector.")
_TEXT = TextPart(
    config="text_config",
    defaults={"vocab_size": _DEFAULTS["vocab_size"]},
    prefixes={"language_model.": "", "model.language_model.": "model."},
    others=(*_PICTURES, *(f"model.{name}" for name in _PICTURES)),
)

FAMILY = Family(
    "Gemma3ForCausalLM",
    "gemma3_text",
    "gemma3",
    read,
    hf_names=SANDWICH_HF,
    gguf_names=SANDWICH_GGUF,
    summary="Gemma 3: normed heads, a sliding window on five layers of six, which have their own "
    "rotary positions",
)

WITH_PICTURES = replace(
    FAMILY,
    architecture="Gemma3ForConditionalGeneration",
    model_type="gemma3",
    gguf_architecture=None,
    hf_text=_TEXT,
    summary="Gemma 3 checkpoints that also take pictures: the text model of them",
)
"""The larger ones' checkpoints, of which the text model is served."""
