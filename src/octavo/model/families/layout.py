"""How fused tensors hold queries, keys and values, or gate and up.

Owns: the rows of each part, for `places.Part`; names that lead to them.
Does not know: any family's names, files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.model.places import NameMap, Part, Rows
from octavo.model.spec import LayerSpec


def stacked_qkv(layer: LayerSpec) -> Mapping[str, Rows]:
    """All queries, then all keys, then all values."""
    a = layer.attention
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    return {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)}


def stacked_gate_up(layer: LayerSpec) -> Mapping[str, Rows]:
    """The gate, then up."""
    n = layer.intermediate
    return {"gate": slice(0, n), "up": slice(n, 2 * n)}


def qkv_by_group(layer: LayerSpec) -> Mapping[str, Rows]:
    """For each key-value head: the queries that share it, its key, its value. Where every query
    has a key of its own that is query, key, value, head by head."""
    a = layer.attention
    share, width = a.heads // a.kv_heads, a.head_dim
    step = (share + 2) * width

    def rows(first: int, heads: int) -> list[int]:
        return [
            group * step + (first + head) * width + i
            for group in range(a.kv_heads)
            for head in range(heads)
            for i in range(width)
        ]

    return {"q": rows(0, share), "k": rows(share, 1), "v": rows(share + 1, 1)}


def fused_qkv(
    module: str, rows: Callable[[LayerSpec], Mapping[str, Rows]] = stacked_qkv
) -> NameMap:
    """Names of queries, keys and values that lie in one `module`."""
    part = Part(module, rows)
    return {f"layers.{{i}}.{name}": part for name in "qkv"}


def fused_gate_up(module: str) -> NameMap:
    """Names of a gate and what it gates, in one `module`."""
    part = Part(module, stacked_gate_up)
    return {f"layers.{{i}}.{name}": part for name in ("gate", "up")}
