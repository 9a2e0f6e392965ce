"""Statistics that survive restarts of the engine.

Owns: carrying counters (`*_total`) over, so that they never fall; gauges are those of now.
Does not know: where snapshots come from. What a dead engine counted after its last snapshot (a
quarter of a second at most) is lost.
"""

from __future__ import annotations

import msgspec

from octavo.engine.messages import EngineStats

_KEPT = ("model", "blocks_total", "block_size", "group_blocks")
_COUNTERS = tuple(
    name for name in EngineStats.__struct_fields__ if name.endswith("_total") and name not in _KEPT
)


class Totals:
    def __init__(self, model: str) -> None:
        self._base = EngineStats(model=model)
        self.latest = EngineStats(model=model)
        """Counters over all engine processes so far, gauges of the present one."""

    def update(self, snapshot: EngineStats) -> None:
        """A snapshot of the engine process that runs now."""
        self.latest = _sum(self._base, snapshot)

    def restarted(self) -> None:
        """The process is gone: its counters stay, its gauges are nought."""
        gone = self.latest
        kept = {name: getattr(gone, name) for name in (*_COUNTERS, *_KEPT)}
        self._base = EngineStats(**kept)
        self.latest = EngineStats(**kept, blocks_free=gone.blocks_total)


def _sum(base: EngineStats, snapshot: EngineStats) -> EngineStats:
    total = msgspec.structs.replace(snapshot)
    for name in _COUNTERS:
        before, now = getattr(base, name), getattr(snapshot, name)
        if isinstance(now, dict):
            merged = dict(before)
            for key, count in now.items():
                merged[key] = merged.get(key, 0) + count
            setattr(total, name, merged)
        else:
            setattr(total, name, before + now)
    return total
