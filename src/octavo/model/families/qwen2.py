"""Qwen2 and Qwen2.5: LLaMA with biases on q, k and v alone; later layers may have a window.

Owns: the keys in which Qwen2 differs from its relatives.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import Family, Plan, read_llama_like
from octavo.model.families.fields import Fields
from octavo.model.families.shape import MAX_LAYERS
from octavo.model.families.windows import read_qwen_windows


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields.size("num_key_value_heads")
    windows = read_qwen_windows(fields, fields.size("num_hidden_layers", limit=MAX_LAYERS))
    return read_llama_like(fields, divisors, qkv_bias=True, windows=windows)


FAMILY = Family(
    "Qwen2ForCausalLM",
    "qwen2",
    "qwen2",
    read,
    summary="Qwen2 and Qwen2.5: LLaMA with biases on q, k and v; sliding windows on later "
    "layers where they are switched on",
)
