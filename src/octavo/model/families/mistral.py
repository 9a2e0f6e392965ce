"""Mistral: LLaMA without biases, in early versions with a sliding window on all layers.

Owns: what the window's key means where it is absent or null.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import Family, Plan, read_llama_like
from octavo.model.families.fields import Fields
from octavo.model.families.shape import MAX_LAYERS

_DEFAULT_WINDOW = 4096
"""What transformers assumes where the key is absent; null means none."""


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields.size("num_key_value_heads")
    layers = fields.size("num_hidden_layers", limit=MAX_LAYERS)
    window = 0
    if not fields.null("sliding_window"):
        window = fields.size("sliding_window", _DEFAULT_WINDOW)
    return read_llama_like(fields, divisors, windows=[window] * layers)


FAMILY = Family(
    "MistralForCausalLM",
    "mistral",
    None,
    read,
    summary="Mistral: LLaMA without biases, early ones with a sliding window on all layers (in "
    "GGUF it is called llama)",
)
