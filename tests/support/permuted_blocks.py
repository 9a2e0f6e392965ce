"""An executor whose blocks lie elsewhere: every block id is another one for the model.

Owns: the permutation of ids in a plan.
Does not know: which executor it stands before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo.core.plan import Copy, Executor, StepPlan, StepResult


class PermutedBlocks:
    """Implements `octavo.core.plan.Executor` around another one. `blocks` of each KV group."""

    def __init__(self, executor: Executor, blocks: int | Sequence[int], seed: int) -> None:
        self._executor = executor
        rng = random.Random(seed)
        sizes = [blocks] if isinstance(blocks, int) else blocks
        self._ids = [rng.sample(range(size), size) for size in sizes]

    def submit(self, plan: StepPlan) -> Any:
        ids = self._ids
        rows = [
            replace(
                row,
                tables=tuple(
                    [of_group[block] for block in table]
                    for of_group, table in zip(ids, row.tables, strict=True)
                ),
            )
            for row in plan.rows
        ]
        copies = [
            Copy(c.group, ids[c.group][c.source], ids[c.group][c.target]) for c in plan.copies
        ]
        transfers = [replace(one, block=ids[one.group][one.block]) for one in plan.transfers]
        return self._executor.submit(replace(plan, rows=rows, copies=copies, transfers=transfers))

    def collect(self, handle: Any) -> StepResult:
        return self._executor.collect(handle)
