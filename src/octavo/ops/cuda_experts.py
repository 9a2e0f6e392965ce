"""Routed experts in torch: which ones a token takes, and their weighted sum.

Owns: routing, the grouping of rows by expert, the order of the sum.
Does not know: how a product or an activation is computed. It is the twin of reference_experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from octavo.ops import RoutingSpec
from octavo.ops.reference_experts import ExpertSet


def route(scores: torch.Tensor, spec: RoutingSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and their weights, (tokens, taken) each; the shared one last."""
    routed = scores[:, : spec.count]
    share = torch.softmax(routed, dim=-1)
    # A stable sort: of equal scores the lower number comes first, which `topk` does not promise.
    taken = torch.sort(routed, dim=-1, descending=True, stable=True).indices[:, : spec.top_k]
    weights = share.gather(1, taken)
    if spec.normalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    weights = weights * spec.scale
    if spec.shared:
        last = torch.full_like(taken[:, :1], spec.count)
        taken = torch.cat([taken, last], dim=1)
        weights = torch.cat([weights, torch.sigmoid(scores[:, spec.count :])], dim=1)
    return taken, weights


def mix(
    x: torch.Tensor,
    scores: torch.Tensor,
    chosen: ExpertSet,
    mlp: Callable[[torch.Tensor, tuple[Any, Any]], torch.Tensor],
) -> torch.Tensor:
    """The weighted sum of `mlp(rows, expert)`; each expert sees the rows that take it. How many
    rows that are is asked of the device once, for all experts."""
    taken, weights = route(scores, chosen.spec)
    order = torch.argsort(taken.flatten(), stable=True)
    rows = order.div(taken.shape[1], rounding_mode="floor")
    factors = weights.flatten().index_select(0, order)[:, None]
    counts = torch.bincount(taken.flatten(), minlength=chosen.spec.scores).tolist()
    out, first = torch.zeros_like(x), 0
    for expert, count in zip(chosen.experts, counts, strict=True):
        if count:
            some = rows[first : first + count]
            part = mlp(x.index_select(0, some), expert) * factors[first : first + count]
            out.index_add_(0, some, part)  # no row twice: the order of the sum is the experts'
        first += count
    return out
