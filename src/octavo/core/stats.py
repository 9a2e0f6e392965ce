"""The scheduler's figures at one moment.

Owns: `Counters` (since the start) and `SchedulerStats` (a snapshot).
Does not know: metrics formats.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.request import ServiceClass

if TYPE_CHECKING:
    from octavo.core.lifecycle import Lifecycle


RECENT = 1000
"""Requests whose prompts count for the recent hit rate."""


class Cause(enum.StrEnum):
    """Why a sequence was preempted."""

    BLOCKS = "blocks"
    CLASS = "class"


@dataclass(slots=True)
class Counters:
    """Totals since the scheduler was made."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    preemptions_by: dict[str, int] = field(default_factory=dict)
    """By cause and class: "blocks/batch"."""
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
    reclaimed: dict[str, int] = field(default_factory=dict)
    """Blocks that went from a sequence back to the pool, by cause: "finished", "aborted",
    "failed", "expired", "preempted", "window"."""
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Of the requests that began last: prompt tokens, and those found in the prefix cache."""

    def looked_up(self, prompt: int, cached: int) -> None:
        """A request begins."""
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.recent.append((prompt, cached))

    def reclaim(self, cause: str, blocks: int) -> None:
        if blocks:
            self.reclaimed[cause] = self.reclaimed.get(cause, 0) + blocks

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens found in the prefix cache lately, 0 to 1."""
        prompts = sum(prompt for prompt, _ in self.recent)
        return sum(cached for _, cached in self.recent) / prompts if prompts else 0.0

    def preempted(self, cause: Cause, service_class: ServiceClass) -> None:
        self.preemptions += 1
        key = f"{cause.value}/{service_class.value}"
        self.preemptions_by[key] = self.preemptions_by.get(key, 0) + 1


@dataclass(slots=True)
class SchedulerStats:
    """Names as in the engine's stats frame. Sequences are counted, not requests; block figures are
    sums over the KV groups, and `group_blocks` and `group_held` tell them apart."""

    running: int
    waiting: int
    running_by_class: dict[str, int]
    waiting_by_class: dict[str, int]
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
    preemptions_by_total: dict[str, int]
    """By cause ("blocks": one in front of it needed them; "class": realtime work came) and class,
    such as "class/batch"."""
    adaptive_rows: int
    """Rows that a step may have now, where they follow a target; else the fixed limit."""
    adaptive_tokens: int
    adaptive_tpot: float
    """Mean of the last times between tokens, in seconds; 0 without a target."""
    adaptive_latency: float
    adaptive_changes_total: dict[str, int]
    """How often the limits were "raised" and "lowered"."""
    batch_credit: int
    """Tokens that the batch class is owed now; below 0 it has had more than its share."""
    copies_total: int
    blocks_evicted_total: int
    steps_total: int
    finished_total: dict[str, int]
    refused_total: dict[str, int]
    blocks_reclaimed_total: dict[str, int]
    prefix_hit_rate: float
    group_blocks: dict[str, int]
    """Blocks in the pool of each KV group, by name: "full", "window 512"."""
    group_held: dict[str, int]
    tier_hits_total: int
    """Blocks asked of the tier."""
    tier_misses_total: int
    """Full blocks that were to be computed because neither the pool nor the tier had them."""
    tier_loaded_total: int


def snapshot(books: Lifecycle, waiting: int, batch_credit: int) -> SchedulerStats:
    """The figures now."""
    pools = books.tables.pools
    counters, limits = books.counters, books.limits
    filled, logical = _filled(books)
    batch = sum(sequence.batch for sequence in books.running)
    blocks: dict[str, int] = {}
    held: dict[str, int] = {}
    for pool in pools:
        name = f"window {pool.spec.window}" if pool.spec.window else "full"
        blocks[name] = blocks.get(name, 0) + pool.total
        held[name] = held.get(name, 0) + pool.held
    return SchedulerStats(
        running=len(books.running),
        waiting=waiting,
        running_by_class=by_class(len(books.running) - batch, batch),
        waiting_by_class=by_class(waiting - books.waiting_batch, books.waiting_batch),
        waiting_tokens=books.unstarted_tokens,
        blocks_total=sum(pool.total for pool in pools),
        blocks_held=sum(pool.held for pool in pools),
        blocks_cached=sum(pool.cached for pool in pools),
        blocks_free=sum(pool.free for pool in pools),
        block_size=books.config.block_size,
        slots_filled=filled,
        logical_blocks=logical,
        prompt_tokens_total=counters.prompt_tokens,
        cached_tokens_total=counters.cached_tokens,
        generated_tokens_total=counters.generated_tokens,
        computed_tokens_total=counters.computed_tokens,
        preemptions_total=counters.preemptions,
        preemptions_by_total=dict(counters.preemptions_by),
        batch_credit=batch_credit,
        adaptive_rows=limits.rows,
        adaptive_tokens=limits.tokens,
        adaptive_tpot=limits.tpot.mean,
        adaptive_latency=limits.latency.mean,
        adaptive_changes_total={"raised": limits.raised, "lowered": limits.lowered},
        copies_total=counters.copies,
        blocks_evicted_total=sum(pool.evictions for pool in pools),
        steps_total=counters.steps,
        finished_total=dict(counters.finished),
        refused_total=dict(counters.refused),
        blocks_reclaimed_total=dict(counters.reclaimed),
        prefix_hit_rate=counters.hit_rate,
        group_blocks=blocks,
        group_held=held,
        tier_hits_total=books.tier.hits,
        tier_misses_total=books.tier.misses,
        tier_loaded_total=books.tier.loaded,
    )


def by_class(realtime: int, batch: int) -> dict[str, int]:
    return {ServiceClass.REALTIME.value: realtime, ServiceClass.BATCH.value: batch}


def _filled(books: Lifecycle) -> tuple[int, int]:
    """Token slots written in held blocks, each block once; and the held places of all tables."""
    size = books.config.block_size
    logical = 0
    filled: dict[tuple[int, int], int] = {}
    for sequence in (*books.running, *books.lingering.values()):
        written = max(sequence.computed, sequence.write_from)
        for group, table in enumerate(sequence.tables):
            logical += len(table) - table.first
            for index in range(table.first, len(table)):
                slots = min(size, max(0, written - index * size))
                place = (group, table[index])
                if slots > filled.get(place, 0):
                    filled[place] = slots
    return sum(filled.values()), logical
