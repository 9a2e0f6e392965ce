"""What the engine says of its own state.

Owns: the states and what each means for liveness and readiness.
Does not know: HTTP, or how the state came about.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class EngineState(enum.StrEnum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    STUCK = "stuck"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Health:
    """`ok`: alive, or able to recover by itself. `ready`: takes requests now. `restarts` counts
    engine processes that had to be replaced."""

    state: EngineState
    reason: str
    restarts: int

    @property
    def ok(self) -> bool:
        return self.state not in (EngineState.STUCK, EngineState.FAILED)

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY
