"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts, and one that every token takes.

Owns: the keys in which Qwen2-MoE differs from Qwen2.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.errors import ModelError
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
from octavo.model.spec import ExpertsSpec


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    fields.size("num_key_value_heads")
    refuse_windows(fields)
    if fields.gguf:  # as llama.cpp reads files that leave out the widths
        width, top_k = fields.size("intermediate_size"), fields.size("num_experts_per_tok")
        fields = fields.filled(
            moe_intermediate_size=width // top_k, shared_expert_intermediate_size=width
        )
    normalize = fields.flag("norm_topk_prob")
    experts = ExpertsSpec(
        read_routing(fields, normalize=normalize, shared=True),
        fields.size("moe_intermediate_size"),
        fields.size("shared_expert_intermediate_size"),
    )
    plan = read_llama_like(fields, divisors, qkv_bias=fields.flag("qkv_bias", True))
    return with_experts(plan, experts, sparse_layers(fields))


def refuse_windows(fields: Fields) -> None:
    if fields.flag("use_sliding_window"):
        raise ModelError(
            f"{fields.origin}: use_sliding_window is true; sliding windows are not supported in "
            "models with experts",
            "unsupported_feature",
        )


FAMILY = Family(
    "Qwen2MoeForCausalLM",
    "qwen2_moe",
    "qwen2moe",
    read,
    hf_names={**HF_NAMES, **HF_EXPERTS},
    gguf_names={**GGUF_NAMES, **GGUF_EXPERTS},
    routed=True,
    hf_stacked=HF_STACKED,
    summary="Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts, and one that every token "
    "takes by a gate of its own",
)
