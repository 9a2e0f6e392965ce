"""The ceilings of this machine: how fast it reads memory and multiplies, measured here and now.

Owns: which loops run, for how long, and the median of them.
Does not know: models. The loops are compiled kernels (csrc/kernels/ceiling.hpp).

A clock that drifts and neighbours on the same machine change these from one minute to the next:
compare a kernel's rate with ceilings of the same run only.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.ops.native import load_native, native_reason

READ_BYTES = 512 << 20
"""More than caches hold."""
RUNS = 5
SECONDS = 0.02
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


class Meter:
    """Measures again and again in one process, so that what is compared is compared with the
    machine as it was at that moment. Holds `read_bytes` of memory and threads of its own.

    Raises RuntimeError where the kernels are not installed, ValueError for an `isa` that cannot run
    here ("" stands for the one in use).
    """

    def __init__(self, threads: int, isa: str = "", read_bytes: int = READ_BYTES) -> None:
        native, _ = load_native()
        if native is None:
            raise RuntimeError(native_reason())
        self._native = native
        self._isa = isa
        self._pool = native.Pool(threads)
        self._memory = native.ReadCeiling(read_bytes, self._pool)
        self._rounds = {kind: self._calibrated(kind) for kind in KINDS}

    def sample(self) -> Ceilings:
        """One run of each loop: some hundredths of a second."""
        return Ceilings(
            isa=self._isa or self._native.build_info()["isa"],
            threads=self._pool.threads,
            read_bytes_per_s=self._memory.bytes / self._memory.run(self._pool, self._isa),
            operations_per_s={kind: self._rate(kind) for kind in KINDS},
            paths=dict(self._native.dot_paths(self._isa)),
        )

    def _calibrated(self, kind: str) -> int:
        """Rounds that take about SECONDS. The first run also wakes the threads and the processor's
        wide units, and is not counted."""
        pieces = PIECES * self._pool.threads
        _, seconds = self._native.dot_ceiling(kind, _FIRST_ROUNDS, pieces, self._pool, self._isa)
        return max(1, min(_MOST_ROUNDS, int(_FIRST_ROUNDS * SECONDS / max(seconds, 1e-6))))

    def _rate(self, kind: str) -> float:
        pieces = PIECES * self._pool.threads
        operations, seconds = self._native.dot_ceiling(
            kind, self._rounds[kind], pieces, self._pool, self._isa
        )
        return float(operations / seconds)


def middle(samples: Sequence[Ceilings]) -> Ceilings:
    """The median of each figure."""
    return Ceilings(
        isa=samples[0].isa,
        threads=samples[0].threads,
        read_bytes_per_s=statistics.median(s.read_bytes_per_s for s in samples),
        operations_per_s={
            kind: statistics.median(s.operations_per_s[kind] for s in samples) for kind in KINDS
        },
        paths=samples[0].paths,
    )


def measure(
    threads: int, isa: str = "", *, read_bytes: int = READ_BYTES, runs: int = RUNS
) -> Ceilings:
    """Medians of `runs` samples; raises as `Meter`."""
    meter = Meter(threads, isa, read_bytes)
    return middle([meter.sample() for _ in range(runs)])
