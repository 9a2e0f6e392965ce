"""The shape and the price of a model's KV cache.

Owns: the cache layout of a decoder, its KV groups, and bytes per block.
Does not know: which blocks are in use (core.blocks), or how a backend lays a block out.
"""

from __future__ import annotations

from octavo.model.info import KvGroup
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


def group_windows(spec: DecoderSpec) -> tuple[int, ...]:
    """The window of each KV group (0: full attention). Raises ValueError where layers of one group
    see differently far, or a group or a place in it is missing: blocks are given back by group."""
    found: dict[int, int] = {}
    places: dict[int, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        attention = layer.attention
        window = found.setdefault(attention.group, attention.window)
        if window != attention.window:
            raise ValueError(
                f"layer {index} has a window of {attention.window}; the others of KV group "
                f"{attention.group} have {window}"
            )
        places.setdefault(attention.group, []).append(attention.layer)
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"KV groups must be numbered from 0 on, not {sorted(found)}")
    for group, layers in places.items():
        if sorted(layers) != list(range(len(layers))):
            raise ValueError(f"KV group {group} has layers in the places {sorted(layers)}")
    return tuple(found[group] for group in range(len(found)))


def kv_groups(spec: DecoderSpec, dtype: str = "float32") -> tuple[KvGroup, ...]:
    """The KV groups of a decoder with what they take for a token."""
    layout = cache_layout(spec, 1, dtype)
    return tuple(
        KvGroup(window, layout.layers[group], bytes_per_block(layout, group))
        for group, window in enumerate(group_windows(spec))
    )


def bytes_per_block(layout: CacheLayout, group: int = 0, *, padded: bool = False) -> int:
    """Keys and values of one block of a KV group, all its layers. `padded`: as the compiled backend
    stores them, head dimensions filled up to a multiple of 16."""
    dims = -(-layout.head_dim // PADDING) * PADDING if padded else layout.head_dim
    head = dims * DTYPE_BYTES[layout.dtype] + SCALE_BYTES.get(layout.dtype, 0)
    return 2 * layout.layers[group] * layout.block_size * layout.kv_heads * head
