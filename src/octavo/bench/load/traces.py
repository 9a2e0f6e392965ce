"""Traces of real traffic: when requests came and how long they were.

Owns: the formats (CSV and JSONL by the names of their columns).
Does not know: prompts (a trace has lengths only, some have hashes of blocks).

| columns | from |
|---|---|
| TIMESTAMP, ContextTokens, GeneratedTokens | Azure's public traces |
| arrived_at, num_prefill_tokens, num_decode_tokens | ServeGen, Vidur (without times: all at once) |
| timestamp (ms), input_length, output_length, hash_ids | Mooncake, JSONL |
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from octavo.bench.load.workload import WorkloadError


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at` in seconds; `hashes`: of blocks of 512 tokens, empty where the trace has none."""

    at: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()


_COLUMNS = {
    "at": ("timestamp", "arrived_at"),
    "prompt": ("contexttokens", "num_prefill_tokens", "input_length"),
    "output": ("generatedtokens", "num_decode_tokens", "output_length"),
}


def read_trace(path: str | Path, limit: int | None = None) -> list[Arrival]:
    """The first `limit` arrivals (None: all), by time. Raises WorkloadError, which names the line,
    and OSError where the file cannot be read."""
    arrivals: list[Arrival] = []
    with Path(path).open(encoding="utf-8", newline="") as file:
        jsonl = Path(path).suffix in (".jsonl", ".json")
        rows = _json_rows(path, file) if jsonl else csv.DictReader(file)
        for number, row in enumerate(rows, start=1 if jsonl else 2):
            if limit is not None and len(arrivals) == limit:
                break
            try:
                arrivals.append(_arrival(row, 1e-3 if jsonl else 1.0))
            except (ValueError, TypeError) as error:
                raise WorkloadError(f"{path}, line {number}: {error}") from None
    if not arrivals:
        raise WorkloadError(f"{path}: holds no requests")
    return sorted(arrivals, key=lambda arrival: arrival.at)


def _json_rows(path: str | Path, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            raise WorkloadError(f"{path}, line {number}: not JSON") from None
        if not isinstance(row, dict):
            raise WorkloadError(f"{path}, line {number}: not an object")
        yield row


def _arrival(row: Mapping[str, Any], unit: float) -> Arrival:
    fields = {str(name).strip().lower(): value for name, value in row.items()}
    hashes = tuple(int(one) for one in fields.get("hash_ids") or ())
    time = next((fields[name] for name in _COLUMNS["at"] if name in fields), 0.0)
    prompt, output = _length(fields, "prompt"), _length(fields, "output")
    return Arrival(_seconds(time, unit), prompt, output, hashes)


def _length(fields: Mapping[str, Any], what: str) -> int:
    """At least 1: a request without a prompt or an answer cannot be sent."""
    for name in _COLUMNS[what]:
        if name in fields:
            return max(1, int(float(fields[name])))
    raise ValueError(f"no column for the {what}'s tokens: one of {', '.join(_COLUMNS[what])}")


def _seconds(value: Any, unit: float) -> float:
    if isinstance(value, str) and not _is_number(value):
        # Azure writes seven digits of a second; Python reads six.
        date, _, fraction = value.partition(".")
        return datetime.fromisoformat(date).timestamp() + float(f"0.{fraction or 0}")
    return float(value) * unit


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
