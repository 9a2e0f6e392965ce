"""Random experts and scores for the tests of the op on every backend.

Owns: raw weights, ragged routings (experts without rows, one with all, ties), and the op once more
in float64, token by token.
Does not know: backends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.ops import RawWeight, RoutingSpec
from octavo.ops.reference_act import activate

PATTERNS = ("random", "one expert", "two experts", "ties", "far apart")


def raw(array: np.ndarray) -> RawWeight:
    return RawWeight("w", array.shape, "f32", array, lambda: array)


@dataclass(frozen=True)
class Case:
    """`matrices`: by expert (gate, up, down), or (up, down) where `kind` is not gated."""

    spec: RoutingSpec
    kind: str
    matrices: list[list[np.ndarray]]
    x: np.ndarray
    scores: np.ndarray


def make(
    seed: int,
    spec: RoutingSpec,
    *,
    kind: str = "silu_gated",
    hidden: int = 40,
    width: int = 24,
    shared_width: int = 56,
    rows: int = 9,
    pattern: str = "random",
) -> Case:
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)

    widths = [width] * spec.count + [shared_width] * spec.shared
    ups = 2 if kind.endswith("_gated") else 1
    matrices = [[*(floats(n, hidden) for _ in range(ups)), floats(hidden, n)] for n in widths]
    x = rng.normal(size=(rows, hidden)).astype(np.float32)
    return Case(spec, kind, matrices, x, scores(rng, spec, rows, pattern))


def scores(rng: np.random.Generator, spec: RoutingSpec, rows: int, pattern: str) -> np.ndarray:
    found = rng.normal(0, 1.5, (rows, spec.scores)).astype(np.float32)
    routed = found[:, : spec.count]
    if pattern == "one expert":
        routed[:, int(rng.integers(spec.count))] += 40
    elif pattern == "two experts":
        routed[:, rng.integers(spec.count, size=2)] += 40
    elif pattern == "ties":
        routed[:] = rng.integers(0, 2, routed.shape)
    elif pattern == "far apart":
        routed *= 60
    return found


def expected(case: Case) -> np.ndarray:
    """Token by token, expert by expert."""
    out = np.zeros(case.x.shape)
    for token, row in enumerate(case.scores.astype(np.float64)):
        routed = row[: case.spec.count]
        taken = sorted(range(case.spec.count), key=lambda e: (-routed[e], e))[: case.spec.top_k]
        share = np.exp(routed - routed.max())
        share /= share.sum()
        whole = sum(share[e] for e in taken) if case.spec.normalize else 1.0
        weights = {e: share[e] / whole * case.spec.scale for e in taken}
        if case.spec.shared:
            weights[case.spec.count] = 1 / (1 + np.exp(-row[case.spec.count]))
        for expert, weight in weights.items():
            *ups, down = case.matrices[expert]
            wide = np.concatenate(ups) @ case.x[token]
            out[token] += weight * (down @ activate(wide[None].astype(np.float32), case.kind)[0])
    return out
