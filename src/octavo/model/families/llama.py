"""LLaMA 1 to 3.3, SmolLM2 and everything else that says LlamaForCausalLM.

Owns: the keys in which LLaMA differs from its relatives.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.family import Family, Plan, read_llama_like
from octavo.model.families.fields import Fields


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    bias = fields.flag("attention_bias")
    return read_llama_like(
        fields, divisors, qkv_bias=bias, o_bias=bias, mlp_bias=fields.flag("mlp_bias")
    )


FAMILY = Family(
    "LlamaForCausalLM",
    "llama",
    "llama",
    read,
    gguf_permuted=True,
    context="the model's own (tested up to 32,768)",
    summary="LLaMA 1 to 3.3, SmolLM2 and others of its shape: rotary positions (linear, dynamic, "
    "YaRN, llama3, longrope), grouped-query attention, gated MLP, optional biases",
)
