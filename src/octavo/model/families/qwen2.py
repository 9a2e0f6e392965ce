"""Qwen2 and Qwen2.5: LLaMA with biases on q, k and v alone.

Owns: the keys in which Qwen2 differs from its relatives.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.errors import ModelError
from octavo.model.families.family import Family, Plan, read_llama_like
from octavo.model.families.fields import Fields


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields.size("num_key_value_heads")
    windowed = fields.size("num_hidden_layers") > fields.size("max_window_layers", 28)
    if fields.flag("use_sliding_window") and windowed:
        raise ModelError(
            f"{fields.origin}: use_sliding_window is true with max_window_layers below "
            "num_hidden_layers; sliding windows are not supported",
            "unsupported_feature",
        )
    return read_llama_like(fields, divisors, qkv_bias=True)


FAMILY = Family(
    "Qwen2ForCausalLM",
    "qwen2",
    "qwen2",
    read,
    summary="Qwen2 and Qwen2.5: LLaMA with biases on q, k and v; full attention only",
)
