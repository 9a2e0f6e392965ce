"""An executor with a tier beside it: carries out the transfers of a plan.

Owns: the order of copies at a step's border, and what is told of finished loads.
Does not know: which blocks are worth moving (core.tier), or how a tier keeps them.

    submit(plan):  blocks to be stored are copied out       before anything of the step is written
                   blocks that arrived are copied in        nobody reads them before they are told
                   the plan's loads begin
                   the executor's own submit
    collect:       the executor's result, and the loads that are done

A transfer that fails is a block that did not arrive; it fails no row and no step. Blocks are copied
by the thread that computes, so that no copy meets a computation.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from octavo.core.plan import FinishedLoad, Load, StepPlan, StepResult
from octavo.tiers import BlockTier

log = logging.getLogger(__name__)

PATIENCE = 0.02
"""Seconds that a step waits for a load that nothing can go on without; then the loop has a look at
what else has come."""


class Blocks(Protocol):
    """An executor that gives and takes the bytes of a block."""

    def submit(self, plan: StepPlan) -> Any: ...

    def collect(self, handle: Any) -> StepResult: ...

    def read_block(self, group: int, block: int) -> bytes: ...

    def write_block(self, group: int, block: int, data: bytes) -> None: ...


class TieredExecutor:
    """Implements `core.plan.Executor` around another one."""

    def __init__(self, inner: Blocks, tier: BlockTier) -> None:
        self.tier = tier
        self.errors = 0
        """Blocks that the cache did not give or take."""
        self._inner = inner
        self._coming: dict[int, Load] = {}
        self._finished: list[FinishedLoad] = []

    @property
    def max_in_flight(self) -> int:
        return int(getattr(self._inner, "max_in_flight", 1))

    @property
    def nonfinite(self) -> int:
        return int(getattr(self._inner, "nonfinite", 0))

    def submit(self, plan: StepPlan) -> Any:
        for one in plan.transfers:
            if not isinstance(one, Load):
                self._store(one.group, one.block, one.content)
        for one in plan.transfers:
            if isinstance(one, Load):
                self._coming[one.id] = one
                self.tier.load(one.id, one.group, one.content)
        if plan.waits:
            self.tier.wait(PATIENCE)
        for number, data in self.tier.arrived():
            self._fill(number, data)
        return self._inner.submit(plan)

    def collect(self, handle: Any) -> StepResult:
        result = self._inner.collect(handle)
        result.finished_transfers += self._finished
        self._finished = []
        return result

    def _store(self, group: int, block: int, content: bytes) -> None:
        try:
            self.tier.store(group, content, self._inner.read_block(group, block))
        except (ValueError, MemoryError) as error:
            self.errors += 1
            log.warning("a block of the KV cache was not stored: %s", error)

    def _fill(self, number: int, data: bytes | None) -> None:
        load = self._coming.pop(number, None)
        if load is None:
            return
        ok = data is not None
        if data is not None:
            try:
                self._inner.write_block(load.group, load.block, data)
            except (ValueError, MemoryError) as error:
                ok = False
                self.errors += 1
                log.warning("a block of the KV cache was not loaded: %s", error)
        self._finished.append(FinishedLoad(number, ok))
