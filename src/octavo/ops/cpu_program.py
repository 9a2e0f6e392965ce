"""A model's step on the compiled backend, recorded once and replayed in C++ for every batch.

Owns: the ops as a recorder sees them (values are numbers, slices are columns), and the replay.
Does not know: the model; how a program keeps its values (csrc/program.hpp).

Hundreds of calls from Python for a token would cost a small model a tenth of its time, and every
array between two of them would be new memory. The calls are the same for every batch, because each
array has a row for each token and a fixed width: so one recording is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops import AttentionSpec, NormSpec, RopeSpec
from octavo.ops.cpu_cache import CpuAttention, CpuBatch
from octavo.ops.cpu_codes import CodeWeight
from octavo.ops.cpu_linear import Stack

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Value:
    """An array that a program will have: `x[:, a:b]` are some of its columns."""

    program: Any
    number: int

    @property
    def width(self) -> int:
        return int(self.program.width(self.number))

    def __getitem__(self, key: tuple[slice, slice]) -> Value:
        rows, columns = key
        first, last, step = columns.indices(self.width)
        if rows != slice(None) or step != 1:
            raise ValueError("a recorded array can only be cut into adjacent columns of all rows")
        return Value(self.program, self.program.columns(self.number, first, last))


class Recorder:
    """The part of `octavo.ops.Ops` that a step is made of: each call becomes an op of the program.

    Batch and cache come with each run, and are not looked at here.
    """

    def __init__(self, native: ModuleType, attention: CpuAttention) -> None:
        self.program = native.Program()
        self.ropes: list[RopeSpec] = []
        self.kept: list[Any] = []
        """What the program reads: it does not hold it itself."""
        self._attention = attention

    def _value(self, number: int) -> Value:
        return Value(self.program, number)

    def embed(self, batch: Any, table: Any) -> Value:
        matrix = table.table() if isinstance(table, CodeWeight) else table
        self.kept.append(matrix)
        return self._value(self.program.embed(matrix))

    def embed_positions(self, batch: Any, table: Any, offset: int = 0) -> Value:
        matrix = table.table() if isinstance(table, CodeWeight) else table
        self.kept.append(matrix)
        return self._value(self.program.embed_positions(matrix, offset))

    def linear(self, x: Value, weight: Any) -> Value:
        out = self._value(self.program.matrix(x.number, weight.outputs))
        self._product(x, weight, out, 0)
        return out

    def _product(self, x: Value, weight: Any, out: Value, column: int) -> None:
        if isinstance(weight, Stack):
            for part in weight.parts:
                self._product(x, part, out, column)
                column += part.outputs
            return
        self.kept.append(weight)
        if isinstance(weight, CodeWeight):
            self.program.codes(x.number, weight.parts, weight.bias, out.number, column)
        else:
            self.program.floats(x.number, weight, out.number, column)

    def experts(self, x: Value, scores: Value, experts: Any) -> Value:
        self.kept.append(experts)
        return self._value(self.program.experts(x.number, scores.number, experts))

    def norm(
        self,
        x: Value,
        weight: Floats,
        spec: NormSpec,
        residual: Value | None = None,
        bias: Floats | None = None,
    ) -> tuple[Value, Value]:
        self.kept += [weight, bias]
        added = None if residual is None else residual.number
        normed, total = self.program.norm(
            x.number, added, weight, spec.kind, spec.eps, spec.weight_offset, bias
        )
        return self._value(normed), self._value(total)

    def act(self, x: Value, kind: str) -> Value:
        return self._value(self.program.act(x.number, kind))

    def add(self, x: Value, y: Value, scale: float = 1.0) -> Value:
        return self._value(self.program.add(x.number, y.number, scale))

    def scale(self, x: Value, factor: float) -> Value:
        return self._value(self.program.scale(x.number, factor))

    def bound(self, x: Value, limit: float, smooth: bool = False) -> Value:
        return self._value(self.program.bound(x.number, limit, smooth))

    def logit_rows(self, x: Value, batch: Any) -> Value:
        return self._value(self.program.logit_rows(x.number))

    def rope_and_store(
        self,
        q: Value,
        k: Value,
        v: Value,
        cache: Any,
        batch: Any,
        rope: RopeSpec | None,
        spec: AttentionSpec,
    ) -> Value:
        number = None
        if rope is not None:
            if rope not in self.ropes:
                self.ropes.append(rope)
            number = self.ropes.index(rope)
        interleaved = rope is not None and rope.interleaved
        return self._value(
            self.program.rope_and_store(
                q.number, k.number, v.number, *_place(spec), number, interleaved
            )
        )

    def attention(self, q: Value, cache: Any, batch: Any, spec: AttentionSpec) -> Value:
        slopes = self._attention.slopes(spec)
        self.kept.append(slopes)
        return self._value(
            self.program.attention(
                q.number, *_place(spec), spec.scale, spec.window, spec.softcap, slopes
            )
        )


def _place(spec: AttentionSpec) -> tuple[int, int, int, int, int]:
    return spec.group, spec.layer, spec.heads, spec.kv_heads, spec.head_dim


class RecordedStep:
    """`step(batch, cache)` gives what `forward(ops, batch, cache)` would, without its calls.

    `forward` must make the same calls whatever batch and cache are: it is called once, here, with
    None for either.
    """

    def __init__(
        self,
        forward: Callable[[Any, Any, Any], Any],
        native: ModuleType,
        attention: CpuAttention,
        pool: Any,
    ) -> None:
        recorder = Recorder(native, attention)
        recorder.program.finish(forward(recorder, None, None).number)
        self._program = recorder.program
        self._ropes = recorder.ropes
        self._kept = recorder.kept
        self._attention = attention
        self._pool = pool

    def __call__(self, batch: CpuBatch, cache: Any) -> Floats:
        """The rows whose logits are wanted. Raises ValueError where the batch does not fit the
        cache, MemoryError."""
        tables = [self._attention.rope_table(rope, batch.reach) for rope in self._ropes]
        out: Floats = self._program.run(
            batch.ids, batch.logit_tokens, batch.kv, cache, tables, self._pool
        )
        return out

    def workspace_bytes(self, rows: int) -> int:
        """Bytes of the arrays between ops, for a batch of so many rows."""
        return int(self._program.workspace_bytes(rows))
