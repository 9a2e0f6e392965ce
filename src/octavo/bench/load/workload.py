"""What is sent: requests with a prompt, a length and a time.

Owns: `Item`, `Workload`, and reading workload files.
Does not know: where random prompts (prompts) or traces (traces) come from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


class WorkloadError(Exception):
    """A file of requests that cannot be used: which, where, and why."""


@dataclass(frozen=True, slots=True)
class Item:
    """One request: exactly `max_tokens` tokens are asked for. `at`: seconds after the run's start
    at which it is due (0: at once)."""

    prompt: str
    max_tokens: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`random`: the prompts are distinct by construction, so that no cache can know them."""

    name: str
    items: tuple[Item, ...]
    random: bool = False


def read_workloads(path: str | Path, only: Sequence[str] = ()) -> list[Workload]:
    """The workloads of a file {name: [{"prompt": ..., "max_tokens": ...}]}, in its order; `only`
    those named. Raises WorkloadError, and OSError where the file cannot be read."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise WorkloadError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict) or not data:
        raise WorkloadError(f"{path}: must be an object of lists of requests, by name")
    absent = [name for name in only if name not in data]
    if absent:
        raise WorkloadError(f"{path}: has no workload {absent[0]!r}; it has {', '.join(data)}")
    return [_workload(path, name, data[name]) for name in data if not only or name in only]


def _workload(path: str | Path, name: str, entries: Any) -> Workload:
    if not isinstance(entries, list) or not entries:
        raise WorkloadError(f"{path}: {name} must be a list of requests")
    items = []
    for number, entry in enumerate(entries):
        where = f"{path}: {name}[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
            raise WorkloadError(f"{where}: needs a prompt, as text")
        length = entry.get("max_tokens")
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise WorkloadError(
                f"{where}: max_tokens must be a whole number from 1, not {length!r}"
            )
        items.append(Item(entry["prompt"], length))
    return Workload(name, tuple(items))


def shared_share(prompts: Sequence[str]) -> float:
    """The share of all characters that a prefix cache can serve within one run: those that an
    earlier prompt has at the same place, after the same beginning.

    Neighbours in sorted order share the longest beginnings, so one pass finds them all.
    """
    ordered = sorted(prompts)
    total = sum(map(len, ordered))
    shared = sum(_common(one, other) for one, other in pairwise(ordered))
    return shared / total if total else 0.0


def _common(one: str, other: str) -> int:
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    low, high = 0, length  # one[:low] is common, one[:high] is not
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
