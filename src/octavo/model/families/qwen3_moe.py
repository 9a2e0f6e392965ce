"""Qwen3-MoE: Qwen3's norms of queries and keys, and many small experts.

Owns: the keys in which Qwen3-MoE differs from its relatives.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.experts import (
    GGUF_EXPERTS,
    HF_EXPERTS,
    HF_STACKED,
    read_routing,
    sparse_layers,
    with_experts,
)
from octavo.model.families.family import GGUF_NAMES, HF_NAMES, Family, Plan, read_llama_like
from octavo.model.families.fields import Fields
from octavo.model.families.qwen2_moe import refuse_windows
from octavo.model.spec import ExpertsSpec


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields.size("num_key_value_heads")
    refuse_windows(fields)
    # GGUF files do not say: llama.cpp always divides by the sum, as all released models do.
    normalize = fields.flag("norm_topk_prob", fields.gguf)
    routing = read_routing(fields, normalize=normalize)
    experts = ExpertsSpec(routing, fields.size("moe_intermediate_size"))
    bias = fields.flag("attention_bias")
    plan = read_llama_like(fields, divisors, qkv_bias=bias, o_bias=bias, head_norms=True)
    return with_experts(plan, experts, sparse_layers(fields))


FAMILY = Family(
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    "qwen3moe",
    read,
    hf_names={**HF_NAMES, **HF_EXPERTS},
    gguf_names={**GGUF_NAMES, **GGUF_EXPERTS},
    routed=True,
    hf_stacked=HF_STACKED,
    summary="Qwen3-MoE: Qwen3 with many small experts, of which a router chooses a few for each "
    "token",
)
