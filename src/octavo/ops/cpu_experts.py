"""Packed experts, put together for the compiled kernels.

Owns: the way from packed weights of any family to `native.Experts`.
Does not know: routing, products (csrc/experts.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.ops import RoutingSpec
from octavo.ops.cpu_codes import CodeWeight
from octavo.ops.cpu_linear import Stack


def bundle(native: Any, experts: Sequence[tuple[Any, Any]], kind: str, spec: RoutingSpec) -> Any:
    """`experts` by number, the shared one last. It keeps the weights alive. Raises ValueError where
    shapes or their number do not fit."""
    if len(experts) != spec.scores:
        raise ValueError(f"{len(experts)} experts where there should be {spec.scores}")
    result = native.Experts(spec.count, spec.top_k, spec.normalize, spec.scale, spec.shared, kind)
    for up, down in experts:
        result.add(_stack(native, up), _stack(native, down))
    return result


def _stack(native: Any, weight: Any) -> Any:
    stack = native.Stack()
    for part in weight.parts if isinstance(weight, Stack) else [weight]:
        if isinstance(part, CodeWeight):
            stack.codes(part.parts, part.bias)
        else:
            stack.floats(part)
    return stack
