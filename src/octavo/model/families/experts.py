"""What families with routed experts share: their keys, which layers have experts, names.

Owns: `read_routing`, `sparse_layers`, `with_experts`, the names of experts in Qwen's and GGUF's
ways.
Does not know: files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.model.families.family import Plan
from octavo.model.families.fields import Fields
from octavo.model.places import NameMap, Stacked
from octavo.model.spec import DecoderSpec, ExpertsSpec
from octavo.ops import RoutingSpec

MAX_EXPERTS = 1024
"""More than any model has, and what the kernels take (csrc/rows.hpp)."""

GGUF_EXPERTS: NameMap = {
    "layers.{i}.router": "blk.{i}.ffn_gate_inp",
    "layers.{i}.experts.{e}.gate": Stacked("blk.{i}.ffn_gate_exps", ("gate",)),
    "layers.{i}.experts.{e}.up": Stacked("blk.{i}.ffn_up_exps", ("up",)),
    "layers.{i}.experts.{e}.down": Stacked("blk.{i}.ffn_down_exps", ("down",)),
    "layers.{i}.shared_router": "blk.{i}.ffn_gate_inp_shexp",
    "layers.{i}.shared.gate": "blk.{i}.ffn_gate_shexp",
    "layers.{i}.shared.up": "blk.{i}.ffn_up_shexp",
    "layers.{i}.shared.down": "blk.{i}.ffn_down_shexp",
}

_MLP = "model.layers.{i}.mlp."
HF_EXPERTS: NameMap = {
    "layers.{i}.router": _MLP + "gate",
    "layers.{i}.experts.{e}.gate": _MLP + "experts.{e}.gate_proj",
    "layers.{i}.experts.{e}.up": _MLP + "experts.{e}.up_proj",
    "layers.{i}.experts.{e}.down": _MLP + "experts.{e}.down_proj",
    "layers.{i}.shared_router": _MLP + "shared_expert_gate",
    "layers.{i}.shared.gate": _MLP + "shared_expert.gate_proj",
    "layers.{i}.shared.up": _MLP + "shared_expert.up_proj",
    "layers.{i}.shared.down": _MLP + "shared_expert.down_proj",
}
"""As Qwen's checkpoints have them."""

_GATE_UP = Stacked(_MLP + "experts.gate_up_proj", ("gate", "up"), suffix="")
HF_STACKED: NameMap = {
    "layers.{i}.router": _MLP + "gate",
    "layers.{i}.experts.{e}.gate": _GATE_UP,
    "layers.{i}.experts.{e}.up": _GATE_UP,
    "layers.{i}.experts.{e}.down": Stacked(_MLP + "experts.down_proj", ("down",), suffix=""),
}
"""As transformers 5 holds them in memory, and saves them if asked to."""


def read_routing(fields: Fields, *, normalize: bool, shared: bool = False) -> RoutingSpec:
    """Raises ModelError naming the key that is missing or does not fit."""
    # Mixtral's name for it; transformers 5 writes it for Qwen3-MoE as well.
    key = "num_local_experts" if fields.has("num_local_experts") else "num_experts"
    count = fields.size(key, limit=MAX_EXPERTS)
    top_k = fields.size("num_experts_per_tok")
    if top_k > count:
        raise fields.bad("num_experts_per_tok", top_k, f"at most the {count} experts there are")
    return RoutingSpec(count, top_k, normalize=normalize, shared=shared)


def with_experts(plan: Plan, experts: ExpertsSpec, sparse: Callable[[int], bool]) -> Plan:
    """The plan with `experts` in place of the MLP of the layers that are `sparse`."""

    def build(context: int) -> DecoderSpec:
        spec = plan.build(context)
        layers = enumerate(spec.layers)
        return replace(
            spec, layers=tuple(replace(x, experts=experts) if sparse(i) else x for i, x in layers)
        )

    return replace(plan, build=build)


def sparse_layers(fields: Fields) -> Callable[[int], bool]:
    """Which layers have experts, by Qwen's keys; the others have one MLP."""
    step = fields.size("decoder_sparse_step", 1)
    dense = fields.values.get("mlp_only_layers") or ()
    if not isinstance(dense, list | tuple) or not all(type(i) is int and i >= 0 for i in dense):
        raise fields.bad("mlp_only_layers", dense, "a list of layers")
    return lambda layer: layer not in dense and (layer + 1) % step == 0
