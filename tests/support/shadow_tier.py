"""A tier for tests of the core: slow, forgetful and failing, as a seed has it.

Owns: the shadow contents of stored blocks, loads that come late, out of order, or not at all.
Does not know: which sequences wait for them.
"""

from __future__ import annotations

from random import Random

from octavo.core.plan import FinishedLoad, Load, StepPlan, StepResult, Store
from support.shadow_executor import ShadowExecutor


class ShadowTier:
    """Implements `octavo.core.tier.Tier`. `late` and `fails` are chances, for each look."""

    def __init__(self, seed: int, late: float = 0.6, fails: float = 0.1, loses: float = 0.02):
        self.rng = Random(seed)
        self.late, self.fails, self.loses = late, fails, loses
        self.active = True
        self.blocks: dict[tuple[int, bytes], list[int]] = {}
        self.stored = self.failed = self.loaded = 0

    def contains(self, group: int, content: bytes) -> bool:
        return self.active and (group, content) in self.blocks

    def room(self) -> int:
        return self.rng.choice((0, 1, 2, 100))

    def clear(self) -> None:
        self.blocks.clear()


class TieredShadow(ShadowExecutor):
    """A shadow executor that carries out the transfers of its plans."""

    def __init__(self, tier: ShadowTier, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._tier = tier
        self.coming: list[Load] = []

    def submit(self, plan: StepPlan) -> int:
        tier = self._tier
        for one in plan.transfers:
            if isinstance(one, Store):
                tier.blocks[one.group, one.content] = list(self._block(one.group, one.block))
                tier.stored += 1
            else:
                self.coming.append(one)
                # Whatever lay there is gone from now on.
                self._cache[one.group, one.block] = [-1] * self._size
        finished = [self._fill(load) for load in self._due(plan.waits)]
        if tier.blocks and tier.rng.random() < tier.loses:
            del tier.blocks[tier.rng.choice(list(tier.blocks))]
        handle = super().submit(plan)
        self._results[-1][1].finished_transfers = finished
        return handle

    def collect(self, handle: int) -> StepResult:
        return super().collect(handle)

    def _due(self, waits: bool) -> list[Load]:
        rng, tier = self._tier.rng, self._tier
        due = [load for load in self.coming if rng.random() >= tier.late]
        if waits and not due:
            due = [rng.choice(self.coming)]
        self.coming = [load for load in self.coming if load not in due]
        rng.shuffle(due)
        return due

    def _fill(self, load: Load) -> FinishedLoad:
        tier = self._tier
        content = tier.blocks.get((load.group, load.content))
        if content is None or tier.rng.random() < tier.fails:
            tier.failed += 1
            tier.blocks.pop((load.group, load.content), None)
            return FinishedLoad(load.id, False)
        tier.loaded += 1
        self._cache[load.group, load.block] = list(content)
        return FinishedLoad(load.id, True)
