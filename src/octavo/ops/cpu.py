"""The compiled backend: every op by a C++ kernel on our own threads.

Owns: the threads, the choice of the packed format, and which kernel serves which op.
Does not know: models, requests. Arrays between ops are numpy float32, rows contiguous.

Every kernel is row-independent to the last bit: neither the batch, nor chunks, block ids or the
number of threads change a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.ops import (
    AttentionSpec,
    CacheLayout,
    HostBatch,
    NormSpec,
    RawWeight,
    RopeSpec,
    RoutingSpec,
    SampledRow,
    SampleRow,
)
from octavo.ops.cpu_cache import CpuAttention, CpuBatch
from octavo.ops.cpu_codes import pack as pack_codes
from octavo.ops.cpu_experts import bundle
from octavo.ops.cpu_linear import Stack, pack_float
from octavo.ops.cpu_program import RecordedStep
from octavo.ops.cpu_sampling import sample_rows, score_rows
from octavo.ops.native import load_native, native_reason
from octavo.ops.packing import QUANTIZE, code_format, loss, packed_format

Floats = NDArray[np.float32]


class CpuOps:
    """Implements `octavo.ops.Ops`. Raises RuntimeError where the kernels are not installed.

    `dtype` says how weights are packed (`packing.packed_format`): "auto", "bfloat16" or "float32".
    `quantize` says what plain floats are rounded to: "none", "int8" (a scale for each output)
    or "int4" (a scale and a minimum for 32 inputs).
    """

    name = "cpu"

    def __init__(self, *, threads: int = 1, dtype: str = "auto", quantize: str = "none") -> None:
        native, _ = load_native()
        if native is None:
            raise RuntimeError(native_reason())
        if quantize not in QUANTIZE:
            raise ValueError(f"quantize is {quantize!r}; it must be one of {', '.join(QUANTIZE)}")
        if quantize != "none" and dtype != "auto":
            raise ValueError(f"quantize {quantize} goes with dtype auto, not {dtype}")
        self.dtype = dtype
        self.quantize = quantize
        self.notes: list[str] = []
        self._native = native
        self._pool = native.Pool(threads)
        self._attention = CpuAttention(native, self._pool)

    @property
    def identity(self) -> str:
        isa = self._native.build_info()["isa"]
        return f"cpu:2 isa:{isa} dtype:{self.dtype} quantize:{self.quantize}"

    def recorded(self, forward: Callable[[Any, Any, Any], Any]) -> RecordedStep:
        return RecordedStep(forward, self._native, self._attention, self._pool)

    # Weights and products

    def pack(
        self, weights: Sequence[RawWeight], bias: Sequence[RawWeight] = (), exact: bool = False
    ) -> Any:
        """Floats and codes that are to be stacked are packed apart; each part has its own bias."""
        if exact:
            return pack_float(self._native, weights, bias, "f32")
        codes = [code_format(w.format, self.dtype, self.quantize) for w in weights]
        if len({code is None for code in codes}) > 1:
            biases = [[b] for b in bias] or [[]] * len(weights)
            return Stack([self.pack([w], b) for w, b in zip(weights, biases, strict=True)])
        kind = packed_format([weight.format for weight in weights], self.dtype)
        for weight, code in zip(weights, codes, strict=True):
            self._note(loss(weight.format, code or kind))
        if codes[0] is None:
            return pack_float(self._native, weights, bias, kind)
        return pack_codes(self._native, weights, bias, self.quantize)

    def _note(self, note: str | None) -> None:
        if note is not None and note not in self.notes:
            self.notes.append(note)

    def vector(self, weight: RawWeight) -> Floats:
        return np.array(weight.dequantize(), np.float32)

    def linear(self, x: Floats, weight: Any) -> Floats:
        out: Floats = weight.linear(x, self._pool)
        return out

    def bundle(self, experts: Sequence[tuple[Any, Any]], kind: str, spec: RoutingSpec) -> Any:
        return bundle(self._native, experts, kind, spec)

    def experts(self, x: Floats, scores: Floats, experts: Any) -> Floats:
        return cast(Floats, self._native.experts(_dense(x), _dense(scores), experts, self._pool))

    def embed(self, ids: Any, table: Any) -> Floats:
        out: Floats = table.embed(ids.ids, self._pool)
        return out

    def embed_positions(self, batch: Any, table: Any, offset: int = 0) -> Floats:
        out: Floats = table.embed(batch.positions + offset, self._pool)
        return out

    # Rows by themselves

    def norm(
        self,
        x: Floats,
        weight: Floats,
        spec: NormSpec,
        residual: Floats | None = None,
        bias: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        added = None if residual is None else _dense(residual)
        normed, total = self._native.norm(
            _dense(x), weight, spec.kind, spec.eps, spec.weight_offset, added, bias, self._pool
        )
        return normed, x if residual is None else total

    def act(self, x: Floats, kind: str) -> Floats:
        return cast(Floats, self._native.act(_dense(x), kind, self._pool))

    def add(self, x: Floats, y: Floats, scale: float = 1.0) -> Floats:
        return cast(Floats, self._native.add(_dense(x), _dense(y), scale, self._pool))

    def scale(self, x: Floats, factor: float) -> Floats:
        return cast(Floats, self._native.scale(_dense(x), factor, self._pool))

    def bound(self, x: Floats, limit: float, smooth: bool = False) -> Floats:
        return cast(Floats, self._native.bound(_dense(x), limit, smooth, self._pool))

    # The batch, the cache, attention

    def upload(self, batch: HostBatch) -> CpuBatch:
        return self._attention.upload(batch)

    def logit_rows(self, x: Floats, batch: Any) -> Floats:
        rows: Floats = x[batch.logit_tokens]
        return rows

    def rope_and_store(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        cache: Any,
        batch: Any,
        rope: RopeSpec | None,
        spec: AttentionSpec,
    ) -> Floats:
        return self._attention.rope_and_store(q, k, v, cache, batch, rope, spec)

    def attention(self, q: Floats, cache: Any, batch: Any, spec: AttentionSpec) -> Floats:
        return self._attention.attention(q, cache, batch, spec)

    def allocate_cache(self, layout: CacheLayout, blocks: Sequence[int]) -> Any:
        return self._attention.allocate_cache(layout, blocks)

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int, int]]) -> None:
        self._attention.copy_blocks(cache, pairs)

    def read_block(self, cache: Any, group: int, block: int) -> bytes:
        return self._attention.read_block(cache, group, block)

    def write_block(self, cache: Any, group: int, block: int, data: bytes) -> None:
        self._attention.write_block(cache, group, block, data)

    # From logits to tokens

    def sample(self, logits: Floats, rows: Sequence[SampleRow]) -> list[SampledRow]:
        return sample_rows(self._native, self._pool, logits, rows)

    def score(self, logits: Floats, targets: Sequence[int], top: int) -> list[SampledRow]:
        return score_rows(self._native, self._pool, logits, targets, top)


def _dense(x: Floats) -> Floats:
    """`x` itself where its rows follow one another, as they nearly always do."""
    return np.ascontiguousarray(x)
