"""Checkpoints with routed experts in each way that files hold them.

Owns: experts apart, stacked as transformers 5 holds them, and stacked as GGUF holds them.
Does not know: Octavo.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type

from support import golden_families
from support.gguf_files import convert, gguf_name

Tensors = dict[str, np.ndarray]
_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}


def sparse(name: str, **changes: Any) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The golden configuration `name` with silu and experts in both of two layers, and without the
    window that GGUF has no key for; its shapes."""
    config = {**golden_families.CONFIGS[name], "num_hidden_layers": 2, **changes}
    for key in ("hidden_act", "mlp_only_layers", "decoder_sparse_step", "sliding_window"):
        config.pop(key, None)
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        known: dict[str, list[int]] = json.loads(str(kept["shapes"]))
    shapes = {}
    for tensor, shape in known.items():
        if ".layers.1." in tensor:
            shapes[tensor] = shapes[tensor.replace(".1.", ".0.", 1)] = shape
        elif ".layers." not in tensor:
            shapes[tensor] = shape
    return config, shapes


def _grouped(tensors: Mapping[str, np.ndarray]) -> tuple[Tensors, Tensors]:
    """What is not of an expert, under Qwen's names; and "...experts.gate_proj" etc., stacked."""
    rest, found = {}, {}
    for name, values in tensors.items():
        name = name.replace(".block_sparse_moe.", ".mlp.")
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if match is None:
            rest[name] = values
            continue
        at, number, part = match.groups()
        found.setdefault(f"{at}.{_MIXTRAL.get(part, part)}", {})[int(number)] = values
    stacks = {name: np.stack([e[i] for i in range(len(e))]) for name, e in found.items()}
    return rest, stacks


def stacked(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """As `save_pretrained(save_original_format=False)` of transformers 5 writes them."""
    result, stacks = _grouped(tensors)
    for name, down in stacks.items():
        if name.endswith(".down_proj"):
            at = name.removesuffix("down_proj")
            gate_up = [stacks[at + "gate_proj"], stacks[at + "up_proj"]]
            result[at + "gate_up_proj"] = np.concatenate(gate_up, axis=1)
            result[name] = down
    return result


def to_gguf(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], default: Type
) -> Path:
    """As llama.cpp converts it: routers stay float32, a matrix of one row becomes a vector."""
    architecture = _ARCHITECTURES[config["model_type"]]
    rest, stacks = _grouped(tensors)
    whole = rest | {f"{name}.weight": values for name, values in stacks.items()}
    for name in whole:
        if name.endswith("shared_expert_gate.weight"):
            whole[name] = whole[name].reshape(-1)
    metadata = {
        "expert_count": config.get("num_local_experts", config.get("num_experts")),
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }
    return convert(
        path,
        {**config, "model_type": architecture},
        whole,
        default=default,
        types={gguf_name(n): Type.F32 for n in whole if n.endswith("mlp.gate.weight")},
        metadata={f"{architecture}.{key}": value for key, value in metadata.items()},
    )
