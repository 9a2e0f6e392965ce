"""What a model takes in memory on a backend: its bytes as they will be packed and cached.

Owns: the data types that a backend computes in, and `sized`.
Does not know: how much memory there is (core.memory), or how weights are packed (ops.packing).
"""

from __future__ import annotations

from dataclasses import replace

from octavo.model.info import KvGroup, ModelInfo, Pack
from octavo.model.kv_cache import TILE_KEYS, bytes_per_block
from octavo.ops import CacheLayout
from octavo.ops.packing import packed_bytes, stack_bytes
from octavo.ops.select import resolve_backend

KV_DTYPES = {
    "cpu": ("auto", "bfloat16", "float32", "int8"),
    "cuda": ("auto", "bfloat16", "float32"),
    "reference": ("auto", "float32"),
}
"""What each backend can keep keys and values in."""


def kv_dtype(backend: str, dtype: str, asked: str = "auto") -> str:
    """The type of cached keys and values for the options `dtype` and `kv_cache_dtype`."""
    if asked != "auto":
        return asked
    return "bfloat16" if backend == "cpu" and dtype != "float32" else "float32"


def sized(
    model: ModelInfo,
    *,
    backend: str,
    dtype: str = "auto",
    quantize: str = "none",
    kv_cache_dtype: str = "auto",
) -> ModelInfo:
    """`model` with `weight_bytes`, `kv_bytes_per_token` and `kv_groups` as `backend` will hold
    them."""
    backend = resolve_backend(backend)
    if backend == "reference":
        return model
    cached = kv_dtype(backend, dtype, kv_cache_dtype)
    groups = model.kv_groups or (KvGroup(0, model.layers, model.kv_bytes_per_token),)
    layers = tuple(group.layers for group in groups)
    layout = CacheLayout(TILE_KEYS, layers, model.kv_heads, model.head_dim, cached)
    held = [
        bytes_per_block(layout, group, padded=backend == "cpu") // TILE_KEYS
        for group in range(len(groups))
    ]
    return replace(
        model,
        weight_bytes=_weight_bytes(model, backend, dtype, quantize),
        kv_bytes_per_token=sum(held),
        kv_groups=tuple(
            replace(group, bytes_per_token=each) for group, each in zip(groups, held, strict=True)
        ),
    )


def _weight_bytes(model: ModelInfo, backend: str, dtype: str, quantize: str) -> int:
    """Matrices as they are packed, and the rest (norms, biases) in float32."""
    if not model.packs:
        return model.weight_bytes
    matrices = sum(n * pack.inputs * pack.count for pack in model.packs for _, n in pack.parts)
    packed = sum(_pack_bytes(pack, backend, dtype, quantize) * pack.count for pack in model.packs)
    return 4 * (model.parameters - matrices) + packed


def _pack_bytes(pack: Pack, backend: str, dtype: str, quantize: str) -> int:
    if pack.exact:
        dtype, quantize = "float32", "none"
    if backend == "cuda":  # it holds no codes: what is quantised is widened
        formats, outputs = zip(*pack.parts, strict=True)
        return packed_bytes(formats, sum(outputs), pack.inputs, dtype)
    return stack_bytes(pack.parts, pack.inputs, dtype, quantize)
