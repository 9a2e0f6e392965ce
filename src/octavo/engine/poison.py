"""Which request to blame when the engine dies.

Owns: the rule. Requests that had rows in the step at which the engine died are suspects. A suspect
of two crashes runs alone from then on (`Submission.alone`: its steps hold nobody else's rows). A
request is condemned only after two crashes while alone, so that nobody is failed for a neighbour,
or for someone else's `kill -9`.
Does not know: processes, or how the ids were kept through the crash (step_memory).

What a request computes is the same every time, so one that kills the engine does so at the same
token again. A suspect all of whose choices have moved on since its last crash has computed that
token unharmed: it is counted anew. Without this, two crashes from outside would make the whole
crowd run one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SHARED_CRASHES = 2
"""From this many crashes on, a suspect runs alone."""

LONE_CRASHES = 2
"""After this many crashes alone it is condemned."""


@dataclass(slots=True)
class Suspicion:
    """What is held against one request."""

    crashes: int = 0
    lone_crashes: int = 0
    _reached: dict[int, int] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        return self.crashes >= SHARED_CRASHES

    @property
    def condemned(self) -> bool:
        return self.lone_crashes >= LONE_CRASHES

    def crashed(self, reached: Mapping[int, int]) -> None:
        """The engine died while the request had a row in the step. `reached`: the number of
        output tokens of each choice that is unfinished."""
        before = self._reached
        if before and all(count > before.get(choice, count) for choice, count in reached.items()):
            self.crashes = self.lone_crashes = 0
        self._reached = dict(reached)
        if self.alone:
            self.lone_crashes += 1
        self.crashes += 1
