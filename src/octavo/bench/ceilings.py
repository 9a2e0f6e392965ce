"""The ceilings of this machine: how fast it reads memory and multiplies, measured here and now.

Owns: which loops run, for how long, and the median of them.
Does not know: models. The loops are compiled kernels (csrc/kernels/ceiling.hpp).

A clock that drifts and neighbours on the same machine change these from one minute to the next:
compare a kernel's rate with ceilings of the same run only.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from octavo.ops.native import load_native, native_reason

READ_BYTES = 512 << 20
"""More than caches hold."""
RUNS = 5
SECONDS = 0.03
"""About how long one run of products takes, over all threads."""
PIECES = 32
"""Pieces a thread, in products: few enough to cost nothing, enough to even out."""
_FIRST_ROUNDS = 200
_MOST_ROUNDS = 1 << 20

KINDS = ("float32", "bfloat16", "int8")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """`read_bytes_per_s`: from memory in huge pages. `operations_per_s` by kind of product, a
    multiplication and an addition counting as two; `paths`: the instructions behind each."""

    isa: str
    threads: int
    read_bytes_per_s: float
    operations_per_s: dict[str, float]
    paths: dict[str, str]

    def seconds(self, bytes_read: float, operations: float, kind: str) -> float:
        """The least time for so many bytes and operations, were each the only limit."""
        rate = self.operations_per_s[kind]
        return max(bytes_read / self.read_bytes_per_s, operations / rate)

    def limit(self, bytes_read: float, operations: float, kind: str) -> str:
        """Which of the two limits is the higher: "read", or the kind of product."""
        reading = bytes_read / self.read_bytes_per_s
        return "read" if reading >= operations / self.operations_per_s[kind] else kind


def measure(
    threads: int, isa: str = "", *, read_bytes: int = READ_BYTES, runs: int = RUNS
) -> Ceilings:
    """Medians of `runs`. `isa` "" stands for the one in use.

    Raises RuntimeError where the kernels are not installed, ValueError for an `isa` that cannot run
    here. Takes `read_bytes` of memory and about a second.
    """
    native, _ = load_native()
    if native is None:
        raise RuntimeError(native_reason())
    pool = native.Pool(threads)
    memory = native.ReadCeiling(read_bytes, pool)
    reads = [memory.bytes / memory.run(pool, isa) for _ in range(runs)]
    return Ceilings(
        isa=isa or native.build_info()["isa"],
        threads=threads,
        read_bytes_per_s=statistics.median(reads),
        operations_per_s={kind: _product_rate(native, kind, pool, isa, runs) for kind in KINDS},
        paths=dict(native.dot_paths(isa)),
    )


def _product_rate(native: Any, kind: str, pool: Any, isa: str, runs: int) -> float:
    pieces = PIECES * pool.threads
    rounds = _FIRST_ROUNDS
    # The first run also wakes the threads and the processor's wide units; it is not counted.
    _, seconds = native.dot_ceiling(kind, rounds, pieces, pool, isa)
    rounds = max(1, min(_MOST_ROUNDS, round(rounds * SECONDS / max(seconds, 1e-6))))
    rates: list[float] = []
    for _ in range(runs):
        operations, seconds = native.dot_ceiling(kind, rounds, pieces, pool, isa)
        rates.append(operations / seconds)
    return statistics.median(rates)
