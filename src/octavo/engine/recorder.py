"""The flight recorder: what the last steps looked like, readable after the engine died.

Owns: a ring of fixed records in memory that someone else provides (shared, so that it outlives the
engine process), and its dump as a JSON file.
Does not know: requests or tokens; no content ever enters it.

A record is written when its step begins (state "begun") and again when it ends ("done",
"failed"): after a crash the last one tells how far the engine came.
"""

from __future__ import annotations

import json
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_RECORD = struct.Struct("<QBIIIIIIddddd")
_STATES = ("empty", "begun", "done", "failed")


@dataclass(slots=True)
class StepRecord:
    """One step. Times in seconds: `began` on the engine's clock, the rest durations."""

    step: int
    state: str = "begun"
    rows: int = 0
    tokens: int = 0
    copies: int = 0
    outputs: int = 0
    errors: int = 0
    in_flight: int = 0
    began: float = 0.0
    scheduling: float = 0.0
    submitting: float = 0.0
    collecting: float = 0.0
    committing: float = 0.0


class Recorder:
    """A ring over `buffer`; its capacity is whatever fits. Writer and reader may be two processes:
    a record being overwritten reads as a mixture, which a crash report can bear."""

    def __init__(self, buffer: bytearray | memoryview) -> None:
        self._buffer = buffer
        self.capacity = len(buffer) // _RECORD.size

    def write(self, record: StepRecord) -> None:
        """The slot follows from the step's number, so a second write replaces the first."""
        _RECORD.pack_into(
            self._buffer,
            (record.step % self.capacity) * _RECORD.size,
            record.step,
            _STATES.index(record.state),
            record.rows,
            record.tokens,
            record.copies,
            record.outputs,
            record.errors,
            record.in_flight,
            record.began,
            record.scheduling,
            record.submitting,
            record.collecting,
            record.committing,
        )

    def read(self) -> list[StepRecord]:
        """Oldest first."""
        records = []
        for index in range(self.capacity):
            step, state, *rest = _RECORD.unpack_from(self._buffer, index * _RECORD.size)
            if 0 < state < len(_STATES):
                records.append(StepRecord(step, _STATES[state], *rest))
        return sorted(records, key=lambda record: record.step)


def dump(
    directory: Path, name: str, reason: str, details: dict[str, object], records: list[StepRecord]
) -> Path:
    """Writes `<name>.json` into `directory` (made if need be) and returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    report = {
        "reason": reason,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **details,
        "steps": [asdict(record) for record in records],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path
