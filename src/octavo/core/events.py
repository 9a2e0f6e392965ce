"""What happened in the scheduler, as data: for tests, the flight recorder and the simulator.

Owns: the kinds of event and their record.
Does not know: where they go. Without a sink, nothing is built.

The log holds no clock and no memory address: the same calls give the same log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class EventKind(enum.Enum):
    ADDED = "added"
    REFUSED = "refused"
    ADMITTED = "admitted"
    """`value`: tokens found in the prefix cache."""
    PARKED = "parked"
    """`value`: rid of the sequence that computes the block it waits for."""
    LOADING = "loading"
    """`value`: blocks asked of a tier."""
    WOKEN = "woken"
    FORKED = "forked"
    """`value`: rid of the sequence whose blocks it shares."""
    ROW = "row"
    """`value`: tokens of the row."""
    PREEMPTED = "preempted"
    """`value`: computed tokens that are lost; `detail`: the cause."""
    FINISHED = "finished"
    """`value`: output tokens in all; `detail`: the finish reason."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: EventKind
    step: int
    request_id: str
    choice: int = 0
    rid: int = -1
    value: int = 0
    detail: str = ""


Sink = Callable[[Event], None]
