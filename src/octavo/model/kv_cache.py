"""The shape and the price of a model's KV cache.

Owns: the cache layout of a decoder, and bytes per block.
Does not know: which blocks are in use (core.blocks), or how a backend lays a block out.
"""

from __future__ import annotations

from octavo.model.spec import DecoderSpec
from octavo.ops import CacheLayout

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def cache_layout(spec: DecoderSpec, block_size: int, dtype: str = "float32") -> CacheLayout:
    """Raises ValueError where the layers differ in the shape of a key: one layout serves all."""
    shapes = {(a.kv_heads, a.head_dim) for a in (layer.attention for layer in spec.layers)}
    if len(shapes) != 1:
        raise ValueError(f"layers differ in (kv_heads, head_dim): {sorted(shapes)}")
    kv_heads, head_dim = shapes.pop()
    groups = [layer.attention.group for layer in spec.layers]
    layers = tuple(groups.count(group) for group in range(max(groups) + 1))
    return CacheLayout(block_size, layers, kv_heads, head_dim, dtype)


def bytes_per_block(layout: CacheLayout, group: int = 0) -> int:
    """Keys and values of one block of a KV group, all its layers."""
    width = layout.kv_heads * layout.head_dim * DTYPE_BYTES[layout.dtype]
    return 2 * layout.layers[group] * layout.block_size * width
