"""An executor whose blocks lie elsewhere: every block id is another one for the model.

Owns: the permutation of ids in a plan.
Does not know: which executor it stands before.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from octavo.core.plan import Copy, Executor, StepPlan, StepResult


class PermutedBlocks:
    """Implements `octavo.core.plan.Executor` around another one."""

    def __init__(self, executor: Executor, blocks: int, seed: int) -> None:
        self._executor = executor
        self._ids = random.Random(seed).sample(range(blocks), blocks)

    def submit(self, plan: StepPlan) -> Any:
        ids = self._ids
        rows = [
            replace(row, tables=tuple([ids[block] for block in table] for table in row.tables))
            for row in plan.rows
        ]
        copies = [Copy(c.group, ids[c.source], ids[c.target]) for c in plan.copies]
        return self._executor.submit(replace(plan, rows=rows, copies=copies))

    def collect(self, handle: Any) -> StepResult:
        return self._executor.collect(handle)
