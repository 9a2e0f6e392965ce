"""The scheduler's figures at one moment.

Owns: `Counters` (since the start) and `SchedulerStats` (a snapshot).
Does not know: metrics formats.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.lifecycle import Lifecycle


RECENT = 1000
"""Requests whose prompts count for the recent hit rate."""


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
    preemption_causes: dict[str, int] = field(default_factory=dict)
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

    def preempted(self, cause: str) -> None:
        self.preemptions += 1
        self.preemption_causes[cause] = self.preemption_causes.get(cause, 0) + 1

    def reclaim(self, cause: str, blocks: int) -> None:
        if blocks:
            self.reclaimed[cause] = self.reclaimed.get(cause, 0) + blocks

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens found in the prefix cache lately, 0 to 1."""
        prompts = sum(prompt for prompt, _ in self.recent)
        return sum(cached for _, cached in self.recent) / prompts if prompts else 0.0


@dataclass(slots=True)
class SchedulerStats:
    """Names as in the engine's stats frame. Sequences are counted, not requests; block figures are
    sums over the KV groups, and `group_blocks` and `group_held` tell them apart."""

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
    preemption_causes_total: dict[str, int]
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


def snapshot(books: Lifecycle, waiting: int) -> SchedulerStats:
    """The figures now."""
    pools = books.tables.pools
    counters = books.counters
    filled, logical = _filled(books)
    blocks: dict[str, int] = {}
    held: dict[str, int] = {}
    for pool in pools:
        name = f"window {pool.spec.window}" if pool.spec.window else "full"
        blocks[name] = blocks.get(name, 0) + pool.total
        held[name] = held.get(name, 0) + pool.held
    return SchedulerStats(
        running=len(books.running),
        waiting=waiting,
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
        copies_total=counters.copies,
        blocks_evicted_total=sum(pool.evictions for pool in pools),
        steps_total=counters.steps,
        finished_total=dict(counters.finished),
        refused_total=dict(counters.refused),
        preemption_causes_total=dict(counters.preemption_causes),
        blocks_reclaimed_total=dict(counters.reclaimed),
        prefix_hit_rate=counters.hit_rate,
        group_blocks=blocks,
        group_held=held,
        tier_hits_total=books.tier.hits,
        tier_misses_total=books.tier.misses,
        tier_loaded_total=books.tier.loaded,
    )


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
