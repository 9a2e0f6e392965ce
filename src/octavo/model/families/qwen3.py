"""Qwen3: LLaMA in which each head of q and k is normed; Qwen2's windows.

Owns: the keys in which Qwen3 differs from its relatives.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import Family, Plan, read_llama_like
from octavo.model.families.fields import Fields
from octavo.model.families.shape import MAX_LAYERS
from octavo.model.families.windows import read_qwen_windows


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields.size("num_key_value_heads")
    fields = fields.filled(head_dim=128)
    bias = fields.flag("attention_bias")
    windows = read_qwen_windows(fields, fields.size("num_hidden_layers", limit=MAX_LAYERS))
    return read_llama_like(
        fields, divisors, qkv_bias=bias, o_bias=bias, head_norms=True, windows=windows
    )


FAMILY = Family(
    "Qwen3ForCausalLM",
    "qwen3",
    "qwen3",
    read,
    summary="Qwen3: Qwen2 without biases, each head of q and k normed",
)
