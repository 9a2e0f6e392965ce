"""The scheduler's figures at one moment.

Owns: `Counters` (since the start) and `SchedulerStats` (a snapshot).
Does not know: metrics formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.lifecycle import Lifecycle


@dataclass(slots=True)
class Counters:
    """Totals since the scheduler was made."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    copies: int = 0
    steps: int = 0
    stalls: int = 0
    """Requests failed because nothing could be scheduled; stays 0."""
    looks: int = 0
    """Waiting sequences examined: a measure of work."""
    finished: dict[str, int] = field(default_factory=dict)
    """Choices by finish reason."""
    refused: dict[str, int] = field(default_factory=dict)
    """Requests by refusal code."""


@dataclass(slots=True)
class SchedulerStats:
    """Names as in the engine's stats frame. Sequences are counted, not requests; block figures are
    of the first KV group."""

    running: int
    waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_held: int
    blocks_cached: int
    blocks_free: int
    block_size: int
    slots_filled: int
    logical_blocks: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generated_tokens_total: int
    computed_tokens_total: int
    preemptions_total: int
    copies_total: int
    blocks_evicted_total: int
    steps_total: int
    finished_total: dict[str, int]
    refused_total: dict[str, int]


def snapshot(books: Lifecycle, waiting: int) -> SchedulerStats:
    """The figures now."""
    pool = books.tables.pools[0]
    counters = books.counters
    size = books.config.block_size
    filled: dict[int, int] = {}
    logical = 0
    for sequence in (*books.running, *books.lingering.values()):
        table = sequence.tables[0]
        logical += len(table)
        written = max(sequence.computed, sequence.write_from)
        for index, block in enumerate(table):
            slots = min(size, max(0, written - index * size))
            if slots > filled.get(block, 0):
                filled[block] = slots
    return SchedulerStats(
        running=len(books.running),
        waiting=waiting,
        waiting_tokens=books.unstarted_tokens,
        blocks_total=pool.total,
        blocks_held=pool.held,
        blocks_cached=pool.cached,
        blocks_free=pool.free,
        block_size=size,
        slots_filled=sum(filled.values()),
        logical_blocks=logical,
        prompt_tokens_total=counters.prompt_tokens,
        cached_tokens_total=counters.cached_tokens,
        generated_tokens_total=counters.generated_tokens,
        computed_tokens_total=counters.computed_tokens,
        preemptions_total=counters.preemptions,
        copies_total=counters.copies,
        blocks_evicted_total=pool.evictions,
        steps_total=counters.steps,
        finished_total=dict(counters.finished),
        refused_total=dict(counters.refused),
    )
