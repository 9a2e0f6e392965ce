"""Any backend with a clock around each op: the ops are the same, and so are their results.

Owns: the proxy, and what one step's calls took.
Does not know: which backend it is, or what the figures mean (counting, roofline).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.bench.counting import Cost, Counter
from octavo.ops import Ops


@dataclass(frozen=True, slots=True)
class Call:
    seconds: float
    cost: Cost


class TimedOps:
    """Stands for `ops` wherever one is taken. What it does for itself is kept apart, in `overhead`
    (seconds), so that a step can be counted without it."""

    def __init__(self, ops: Ops, clock: Callable[[], float] = time.perf_counter) -> None:
        self.calls: list[Call] = []
        self.overhead = 0.0
        self.timing = True
        """Whether steps run op by op. Otherwise there is nothing to put a clock around."""
        self._ops = ops
        self._clock = clock
        self._counter = Counter()

    def take(self) -> tuple[list[Call], float]:
        """The calls since the last time, and the overhead in them."""
        calls, overhead = self.calls, self.overhead
        self.calls, self.overhead = [], 0.0
        return calls, overhead

    def __getattr__(self, name: str) -> Any:
        """An op, with a clock around it; anything else as it is."""
        value = getattr(self._ops, name)
        if name.startswith("_") or not callable(value):
            return value
        timed = self._timed(name, value)
        setattr(self, name, timed)  # from now on without this detour
        return timed

    def recorded(self, forward: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Op by op while `timing`; otherwise as the backend itself does it."""
        plain, timed = self._ops.recorded(forward), partial(forward, self)
        return lambda batch, cache: (timed if self.timing else plain)(batch, cache)

    def pack(self, weights: Any, bias: Any = (), **more: Any) -> Any:
        result = self._ops.pack(weights, bias, **more)
        self._counter.packed(weights, result)
        return result

    def bundle(self, experts: Any, kind: str, spec: Any) -> Any:
        result = self._ops.bundle(experts, kind, spec)
        self._counter.bundled(experts, spec, result)
        return result

    def allocate_cache(self, layout: Any, blocks: Any, **more: Any) -> Any:
        self._counter.allocated(layout)
        return self._ops.allocate_cache(layout, blocks, **more)

    def upload(self, batch: Any, **more: Any) -> Any:
        self._counter.uploaded(batch)
        return self._timed("upload", self._ops.upload)(batch, **more)

    def _timed(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        clock, cost = self._clock, self._counter.cost

        def call(*args: Any, **kwargs: Any) -> Any:
            begun = clock()
            result = op(*args, **kwargs)
            ended = clock()
            self.calls.append(Call(ended - begun, cost(name, *args, **kwargs)))
            self.overhead += clock() - ended
            return result

        return call
