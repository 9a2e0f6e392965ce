"""SmolLM3: LLaMA in which every fourth layer has no rope.

Owns: the keys that say which layers those are.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import Family, Plan, read_llama_like
from octavo.model.families.fields import Fields
from octavo.model.families.shape import MAX_LAYERS
from octavo.model.families.windows import read_windows


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    """Where windows are in use, they are those of the layers without rope."""
    fields.size("num_key_value_heads")
    fields = fields.filled(rope_theta=2_000_000.0)
    layers = fields.size("num_hidden_layers", limit=MAX_LAYERS)
    rotated = _rotated(fields, layers)
    used = fields.flag("use_sliding_window") and fields.has("sliding_window")
    bias = fields.flag("attention_bias")
    return read_llama_like(
        fields,
        divisors,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias"),
        tied=True,
        windows=read_windows(fields, layers, lambda i: used and not rotated[i]),
        rotated=rotated,
    )


def _rotated(fields: Fields, layers: int) -> tuple[bool, ...]:
    """`no_rope_layers` has 1 for the layers that do have rope."""
    given = fields.choices("no_rope_layers", (0, 1), layers)
    if given is not None:
        return tuple(bool(flag) for flag in given)
    interval = fields.size("no_rope_layer_interval", 4)
    return tuple((i + 1) % interval != 0 for i in range(layers))


FAMILY = Family(
    "SmolLM3ForCausalLM",
    "smollm3",
    "smollm3",
    read,
    gguf_permuted=True,
    summary="SmolLM3: LLaMA in which some layers have no rotary positions",
)
