"""The engine's figures of now, as the frame that goes to the client.

Owns: joining what scheduler, loop and executor count.
Does not know: who looks at them, or how often.
"""

from __future__ import annotations

from dataclasses import asdict

from octavo.engine.engine_core import EngineCore
from octavo.engine.messages import EngineStats


def snapshot(model: str, core: EngineCore) -> EngineStats:
    stats = core.scheduler.stats()
    return EngineStats(
        model=model,
        step=stats.steps_total,
        nonfinite_total=core.nonfinite,
        step_seconds_total=core.step_seconds,
        **core.tier_figures(),
        **asdict(stats),
    )
