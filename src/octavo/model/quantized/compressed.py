"""compressed-tensors' configuration: groups of modules, each with the arguments of its weights.

Owns: its keys, and which of its formats are supported.
Does not know: tensors (integers, fp8).
"""

from __future__ import annotations

from typing import Any

from octavo.model.families.fields import Fields
from octavo.model.quantized.fp8 import Fp8, fp8_block
from octavo.model.quantized.integers import Integers
from octavo.model.quantized.refusals import refused
from octavo.model.quantized.scheme import Scheme

_FORMATS = (
    "compressed-tensors in int-quantized (8 bits), pack-quantized (4, 8), float-quantized (8)"
)


def read_compressed(fields: Fields, origin: str) -> Scheme:
    """Raises ModelError (codes "unsupported_quantization", "bad_config")."""
    groups = fields.values.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise fields.bad("config_groups", groups, "an object with a group at least")
    sparsity = fields.values.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        kind = sparsity.get("format")
        raise refused(origin, f"has compressed-tensors with sparsity format {kind!r}", _FORMATS)
    found = [_weights(name, group, fields) for name, group in groups.items()]
    if any((kind, w.values) != (found[0][0], found[0][1].values) for kind, w in found[1:]):
        raise refused(
            origin,
            f"has compressed-tensors with {len(found)} groups of different weights",
            "compressed-tensors with the same for all quantised modules",
        )
    kind, weights = found[0]
    bits, numbers = weights.size("num_bits"), weights.text("type", "int")
    symmetric = weights.flag("symmetric", True)
    strategy = weights.text(
        "strategy", "tensor" if weights.values.get("group_size") is None else "group"
    )
    told = f"has compressed-tensors in {kind!r} with {numbers} weights of {bits} bits, {strategy}"
    if kind == "naive-quantized":
        kind = "int-quantized" if numbers == "int" else "float-quantized"
    if (kind, numbers) == ("float-quantized", "float") and bits == 8 and symmetric:
        if strategy == "block":
            return Fp8("compressed-tensors float-quantized", fp8_block(weights, "block_structure"))
        if strategy in ("tensor", "channel", "group"):
            block = (1, weights.size("group_size")) if strategy == "group" else None
            return Fp8("compressed-tensors float-quantized", block)
    packed = kind == "pack-quantized"
    good = bits in (4, 8) if packed else bits == 8 and kind == "int-quantized"
    if not good or numbers != "int" or strategy not in ("tensor", "channel", "group"):
        raise refused(origin, told, _FORMATS)
    group = 0
    if strategy == "group" and weights.values.get("group_size") != -1:
        group = weights.size("group_size")
    return Integers(packed, bits, group, symmetric)


_TOLD = ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure")


def _weights(name: str, group: Any, fields: Fields) -> tuple[str, Fields]:
    """The format of a group, and the arguments of its weights that matter here."""
    at = f"config_groups.{name}"
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise fields.bad(f"{at}.weights", group, "an object")
    kind = group.get("format") or fields.text("format")
    weights = {key: group["weights"].get(key) for key in _TOLD}
    return str(kind), Fields(weights, f"{fields.origin}.{at}.weights")
