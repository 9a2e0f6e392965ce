"""Mistral: LLaMA without biases, in early versions with a sliding window.

Owns: what the window means here: the context ends where it would begin to matter.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import Family, Plan, read_llama_like
from octavo.model.families.fields import Fields

_DEFAULT_WINDOW = 4096
"""What transformers assumes where the key is absent; null means none."""


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    """Within its window a windowed model is a plain one, so the context is limited to that."""
    fields.size("num_key_value_heads")
    plan = read_llama_like(fields, divisors)
    window = fields.optional_size("sliding_window")
    if "sliding_window" not in fields.values:
        window = _DEFAULT_WINDOW
    return Plan(plan.build, min(plan.max_position, window or plan.max_position))


FAMILY = Family(
    "MistralForCausalLM",
    "mistral",
    None,
    read,
    summary="Mistral: LLaMA without biases; a sliding window bounds the context (in GGUF it is "
    "called llama)",
    context="the model's own, at most its sliding window",
)
