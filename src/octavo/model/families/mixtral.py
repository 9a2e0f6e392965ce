"""Mixtral: Mistral with eight experts in place of each MLP.

Owns: the keys in which Mixtral differs from Mistral, and its names for experts.
Does not know: files.
"""

from __future__ import annotations

from octavo.model.families.experts import GGUF_EXPERTS, HF_STACKED, read_routing, with_experts
from octavo.model.families.family import GGUF_NAMES, HF_NAMES, Family, Plan, read_llama_like
from octavo.model.families.fields import Fields
from octavo.model.families.shape import MAX_LAYERS
from octavo.model.spec import ExpertsSpec

_AT = "model.layers.{i}.block_sparse_moe."
_HF_EXPERTS = {
    "layers.{i}.router": _AT + "gate",
    "layers.{i}.experts.{e}.gate": _AT + "experts.{e}.w1",
    "layers.{i}.experts.{e}.up": _AT + "experts.{e}.w3",
    "layers.{i}.experts.{e}.down": _AT + "experts.{e}.w2",
}


def read(fields: Fields, divisors: tuple[float, ...]) -> Plan:
    if not fields.gguf:
        fields = fields.filled(rms_norm_eps=1e-5, rope_theta=1e6)
    fields.size("num_key_value_heads")
    experts = ExpertsSpec(read_routing(fields, normalize=True), fields.size("intermediate_size"))
    layers = fields.size("num_hidden_layers", limit=MAX_LAYERS)
    window = fields.optional_size("sliding_window") or 0
    plan = read_llama_like(fields, divisors, windows=[window] * layers)
    return with_experts(plan, experts, lambda layer: True)


FAMILY = Family(
    "MixtralForCausalLM",
    "mixtral",
    "llama",
    read,
    gguf_permuted=True,
    hf_names={**HF_NAMES, **_HF_EXPERTS},
    gguf_names={**GGUF_NAMES, **GGUF_EXPERTS},
    routed=True,
    hf_stacked=HF_STACKED,
    summary="Mixtral: Mistral with a router that sends each token to two of eight MLPs",
)
