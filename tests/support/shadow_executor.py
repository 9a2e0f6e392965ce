"""A null executor that keeps a shadow of the KV cache and finds every wrong read or write.

Each slot holds a hash of all the tokens up to its position, as real keys and values depend on them.
A row whose table shows anything else for the positions that it sees is an error: a block that was
shared, copied, reused, evicted or given back wrongly cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.blocks import GroupSpec
from octavo.core.plan import Row, StepPlan
from octavo.sim.null_executor import NullExecutor, SeamError


class ShadowExecutor(NullExecutor):
    def __init__(self, groups: Sequence[GroupSpec], *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._groups = groups
        self._size = groups[0].block_size
        self._cache: dict[tuple[int, int], list[int]] = {}
        self._chains: dict[int, list[int]] = {}
        self.written = 0

    def submit(self, plan: StepPlan) -> int:
        copied = [list(self._block(c.group, c.source)) for c in plan.copies]
        for copy, content in zip(plan.copies, copied, strict=True):
            self._cache[copy.group, copy.target] = content
        for rid in plan.ended:
            self._chains.pop(rid, None)
        handle = super().submit(plan)
        # Reads come from the cache alone, so the order of rows within a step must not matter.
        for row in plan.rows:
            self._write(row)
        for row in plan.rows:
            self._read(row)
        return handle

    def _block(self, group: int, block: int) -> list[int]:
        return self._cache.setdefault((group, block), [0] * self._size)

    def _chain(self, row: Row) -> list[int]:
        chain = self._chains.setdefault(row.rid, [])
        tokens = self._sequences[row.rid].tokens
        end = row.start + len(row.tokens)
        parent = chain[-1] if chain else hash(("root", row.adapter or ""))
        for position in range(len(chain), end):
            parent = hash((parent, tokens[position]))
            chain.append(parent)
        return chain

    def _write(self, row: Row) -> None:
        chain = self._chain(row)
        for group, table in enumerate(row.tables):
            for p in range(max(row.start, row.write_from), row.start + len(row.tokens)):
                self._block(group, table[p // self._size])[p % self._size] = chain[p]
                self.written += 1

    def _read(self, row: Row) -> None:
        end = row.start + len(row.tokens)
        chain = self._chain(row)[:end]
        for group, table in enumerate(row.tables):
            first = self._groups[group].first_seen(row.start)
            seen: list[int] = chain[: first * self._size]
            for block in table[first:]:
                seen += self._block(group, block)
            if seen[:end] != chain:
                wrong = next(p for p in range(end) if seen[p] != chain[p])
                raise SeamError(f"sequence {row.rid} finds another's content at position {wrong}")
