"""What an op has to read and compute at the least, counted from shapes.

Owns: bytes and operations of each op, and which kind of product it needs.
Does not know: time, or how a backend does it.

Bytes are those that must come from memory: packed weights, cached keys and values, and, for ops
that read nothing else, their activations. A multiplication and an addition are two operations.
Where everything fits the caches, reading can be faster than memory and a fraction exceed 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from octavo.ops import AttentionSpec, CacheLayout, HostBatch, RawWeight, RoutingSpec

FLOAT = 4
KV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_WIDE, _NARROW = 3.0, 1.5
"""Bytes a weight from which on products are in float32, and in bfloat16; below, of 8-bit codes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """`kind`: of the products, as in `ceilings.KINDS`."""

    label: str
    bytes: float = 0.0
    operations: float = 0.0
    kind: str = "float32"


@dataclass(frozen=True, slots=True)
class _Weight:
    label: str
    outputs: int
    inputs: int
    bytes: int

    @property
    def kind(self) -> str:
        each = self.bytes / (self.outputs * self.inputs)
        return "float32" if each >= _WIDE else "bfloat16" if each >= _NARROW else "int8"


class Counter:
    """Has a method for each op whose cost is known, with the op's own parameters; it remembers the
    weights that were packed and the batch that was uploaded last."""

    def __init__(self) -> None:
        self._weights: dict[int, tuple[_Weight, Any]] = {}
        self._experts: dict[int, tuple[list[list[_Weight]], RoutingSpec, Any]] = {}
        self._batch = HostBatch(block_size=1)
        self._kv = "float32"

    # What is told to it

    def packed(self, weights: Sequence[RawWeight], result: Any) -> None:
        """Keeps `result`, so that no other object can take its identity."""
        names = "+".join(weight.name.rpartition(".")[2] for weight in weights)
        outputs = sum(weight.shape[0] for weight in weights)
        facts = _Weight(names, outputs, weights[0].shape[1], packed_bytes(result))
        self._weights[id(result)] = (facts, result)

    def uploaded(self, batch: HostBatch) -> None:
        self._batch = batch

    def allocated(self, layout: CacheLayout) -> None:
        self._kv = layout.dtype

    def bundled(self, experts: Sequence[tuple[Any, Any]], spec: RoutingSpec, result: Any) -> None:
        each = [[self._weights[id(weight)][0] for weight in expert] for expert in experts]
        self._experts[id(result)] = (each, spec, result)

    # Ops

    def experts(self, x: Any, scores: Any, experts: Any) -> Cost:
        """Which experts are read depends on the scores: as many as tokens that choose at random
        are expected to take."""
        each, spec, _ = self._experts[id(experts)]
        tokens = x.shape[0]
        taken = 1 - (1 - spec.top_k / spec.count) ** tokens
        read = operations = 0.0
        for number, expert in enumerate(each):
            shared = number == spec.count
            for facts in expert:
                rows = tokens if shared else tokens * spec.top_k / spec.count
                read += facts.bytes * (min(tokens, 1) if shared else taken)
                operations += 2.0 * rows * facts.outputs * facts.inputs
        return Cost("experts", read, operations, each[0][0].kind)

    def linear(self, x: Any, weight: Any, *_: Any, **__: Any) -> Cost:
        facts = self._weights[id(weight)][0]
        label = "head" if facts.label == "embed" else facts.label
        operations = 2.0 * x.shape[0] * facts.outputs * facts.inputs
        return Cost(f"linear {label}", facts.bytes, operations, facts.kind)

    def embed(self, ids: Any, table: Any, *_: Any, **__: Any) -> Cost:
        facts = self._weights[id(table)][0]
        return Cost("embed", len(self._batch.ids) * facts.bytes / facts.outputs)

    def norm(
        self, x: Any, weight: Any, spec: Any, residual: Any = None, *_: Any, **__: Any
    ) -> Cost:
        passes = 2 if residual is None else 4
        return Cost("norm", FLOAT * passes * math.prod(x.shape))

    def act(self, x: Any, kind: str, *_: Any, **__: Any) -> Cost:
        outputs = 0.5 if kind.endswith("_gated") else 1.0
        return Cost("act", FLOAT * (1 + outputs) * math.prod(x.shape))

    def add(self, x: Any, *_: Any, **__: Any) -> Cost:
        return Cost("add", FLOAT * 3 * math.prod(x.shape))

    def scale(self, x: Any, *_: Any, **__: Any) -> Cost:
        return Cost("scale", FLOAT * 2 * math.prod(x.shape))

    def rope_and_store(self, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Cost:
        read = 2 * math.prod(q.shape) + math.prod(k.shape) + math.prod(v.shape)
        stored = math.prod(k.shape) + math.prod(v.shape)
        return Cost("rope_and_store", FLOAT * read + KV_BYTES[self._kv] * stored)

    def attention(self, q: Any, cache: Any, batch: Any, spec: AttentionSpec, *_: Any) -> Cost:
        """Each row's keys and values once; a dot product and a weighted sum for each pair of a
        token and one that it sees."""
        window = spec.window or math.inf
        starts = self._batch.row_starts
        keys = pairs = 0.0
        for begin, end in pairwise(starts):
            first, last = self._batch.positions[begin], self._batch.positions[end - 1]
            keys += min(last + 1, window + last - first)
            # Positions of a row follow each other: the sum of what each token sees, in closed form.
            short = max(0, min(last, window - 1) - first + 1)
            pairs += short * (2 * first + short + 1) / 2
            if window != math.inf:
                pairs += (last - first + 1 - short) * window
        width = spec.kv_heads * spec.head_dim
        operations = 4.0 * spec.heads * spec.head_dim * pairs
        kind = "float32" if self._kv == "float32" else "bfloat16"
        return Cost("attention", 2 * KV_BYTES[self._kv] * width * keys, operations, kind)

    def sample(self, logits: Any, *_: Any, **__: Any) -> Cost:
        return Cost("sample", FLOAT * math.prod(logits.shape))

    def score(self, logits: Any, *_: Any, **__: Any) -> Cost:
        return Cost("score", FLOAT * math.prod(logits.shape))

    def cost(self, op: str, *args: Any, **kwargs: Any) -> Cost:
        """Of any op; of one that has no method here, nothing but its name is known."""
        method = getattr(self, op, None) if op in _COUNTED else None
        found: Cost = Cost(op) if method is None else method(*args, **kwargs)
        return found


_COUNTED = frozenset(
    ("linear", "experts", "embed", "norm", "act", "add", "scale", "rope_and_store", "attention",
     "sample", "score")
)  # fmt: skip


def packed_bytes(weight: Any) -> int:
    """What a backend's packed weight takes: by its own word, or by what it is made of."""
    for name in ("bytes", "nbytes"):
        size = getattr(weight, name, None)
        if isinstance(size, int):
            return size
    parts = getattr(weight, "parts", None)
    return sum(map(packed_bytes, parts)) if parts is not None else int(weight.matrix.nbytes)
