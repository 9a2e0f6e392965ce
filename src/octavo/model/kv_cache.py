"""The shape and the price of a model's KV cache.

Owns: the cache layout of a decoder, and bytes per block.
Does not know: which blocks are in use (core.blocks), or how a backend lays a block out.
"""

from __future__ import annotations

from octavo.model.spec import DecoderSpec
from octavo.ops import CacheLayout

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

SCALE_BYTES = {"int8": 4}
"""Of a token's key or value in one head."""

PADDING = 16
TILE_KEYS = 16
"""Head dimensions, and tokens of a block, come in multiples of these on the compiled backend."""


def cache_layout(spec: DecoderSpec, block_size: int, dtype: str = "float32") -> CacheLayout:
    """Raises ValueError where the layers differ in the shape of a key: one layout serves all."""
    shapes = {(a.kv_heads, a.head_dim) for a in (layer.attention for layer in spec.layers)}
    if len(shapes) != 1:
        raise ValueError(f"layers differ in (kv_heads, head_dim): {sorted(shapes)}")
    kv_heads, head_dim = shapes.pop()
    groups = [layer.attention.group for layer in spec.layers]
    layers = tuple(groups.count(group) for group in range(max(groups) + 1))
    return CacheLayout(block_size, layers, kv_heads, head_dim, dtype)


def bytes_per_block(layout: CacheLayout, group: int = 0, *, padded: bool = False) -> int:
    """Keys and values of one block of a KV group, all its layers. `padded`: as the compiled backend
    stores them, head dimensions filled up to a multiple of 16."""
    dims = -(-layout.head_dim // PADDING) * PADDING if padded else layout.head_dim
    head = dims * DTYPE_BYTES[layout.dtype] + SCALE_BYTES.get(layout.dtype, 0)
    return 2 * layout.layers[group] * layout.block_size * layout.kv_heads * head
