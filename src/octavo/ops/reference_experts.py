"""Routed experts in numpy: which ones a token takes, and their weighted sum.

Owns: routing, the grouping of rows by expert, the order of the sum.
Does not know: how a product or an activation is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.ops import RoutingSpec

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ExpertSet:
    """`experts` by number, the shared one last: (before the activation, after it)."""

    experts: Sequence[tuple[Any, Any]]
    kind: str
    spec: RoutingSpec


def check_experts(
    shapes: Sequence[tuple[tuple[int, int], tuple[int, int]]], kind: str, spec: RoutingSpec
) -> None:
    """Raises ValueError where experts of such (outputs, inputs) cannot be a set."""
    if not 0 < spec.top_k <= spec.count:
        raise ValueError(f"{spec.top_k} of {spec.count} experts cannot be taken")
    if len(shapes) != spec.scores:
        raise ValueError(f"{len(shapes)} experts where there should be {spec.scores}")
    gates = 2 if kind.endswith("_gated") else 1
    for number, (up, down) in enumerate(shapes):
        if up != (gates * down[1], down[0]) or down[0] != shapes[0][1][0]:
            raise ValueError(f"expert {number}: matrices {up} and {down} do not fit together")


def route(scores: Floats, spec: RoutingSpec) -> Floats:
    """(tokens, spec.scores): what each expert weighs for each token; 0 where it is not taken.

    A row that is not finite has NaN for all that it takes.
    """
    routed = scores[:, : spec.count]
    powers = np.exp(routed - routed.max(axis=1, keepdims=True))
    share = powers / powers.sum(axis=1, keepdims=True)
    taken = np.argsort(-routed, axis=1, kind="stable")[:, : spec.top_k]
    weights = np.take_along_axis(share, taken, axis=1)
    if spec.normalize:
        weights = weights / weights.sum(axis=1, keepdims=True)
    result = np.zeros(scores.shape, np.float32)
    np.put_along_axis(result, taken, weights * np.float32(spec.scale), axis=1)
    if spec.shared:
        result[:, spec.count] = np.float32(1) / (np.float32(1) + np.exp(-scores[:, spec.count]))
    return result


def mix(
    x: Floats,
    scores: Floats,
    chosen: ExpertSet,
    mlp: Callable[[Floats, tuple[Any, Any], str], Floats],
) -> Floats:
    """The weighted sum of `mlp(rows, expert, kind)`; each expert sees the rows that take it."""
    weights = route(scores, chosen.spec)
    out = np.zeros_like(x)
    for number, expert in enumerate(chosen.experts):
        rows = np.flatnonzero(weights[:, number])  # NaN is not zero
        if number == chosen.spec.count:
            rows = np.arange(len(x))
        if rows.size:
            out[rows] += mlp(x[rows], expert, chosen.kind) * weights[rows, number, None]
    return out
