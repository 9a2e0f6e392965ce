"""Who makes way: batch rows that give their places to waiting realtime requests.

Owns: how many of them give way, before a step is filled.
Does not know: how a step is filled afterwards (planner).

Looked at are the realtime requests that the next step has tokens for, a few at most. If they lack
rows or, by the predicted peak, blocks, then as few batch rows as will do are preempted, the last in
the order first; none where that would not let even the first request in, and never one that is
sheltered. Rows in flight are collected first: until then nobody else is asked to go.
"""

from __future__ import annotations

from bisect import bisect_left

from octavo.core.forecast import Forecast
from octavo.core.lifecycle import Lifecycle
from octavo.core.prefix import extend_hashes
from octavo.core.sequence import Sequence
from octavo.core.stats import Cause

LOOKAHEAD = 16
"""How many waiting requests a step may make way for."""

Guests = list[tuple[Sequence, int]]
"""Waiting sequences with the blocks of theirs that are cached."""


def make_way(books: Lifecycle) -> None:
    """Preempt the batch rows that waiting realtime requests need to begin in this step."""
    if not len(books.queue) or books.yielding:
        return
    hosts = [s for s in reversed(books.running) if s.rank and not (s.sheltered or s.alone)]
    if not hosts:
        return
    guests = _guests(books)
    most = _admitted(books, guests, hosts)
    if not most:
        return
    # More room never lets fewer in, so that the least number can be found by halving.
    needed = bisect_left(
        range(len(hosts)), most, key=lambda count: _admitted(books, guests[:most], hosts[:count])
    )
    for host in hosts[:needed]:
        if host.rows_in_flight:
            books.yield_later(host, Cause.CLASS)
        else:
            books.preempt(host, Cause.CLASS)


def find_hits(books: Lifecycle, sequence: Sequence) -> int:
    """How many leading blocks of a waiting sequence are in the prefix cache."""
    known, size = len(sequence.tokens), books.config.block_size
    if not books.config.enable_prefix_caching:
        return 0
    extend_hashes(sequence.hashes, sequence.live.root, sequence.tokens, size)
    if sequence.scores_prompt:
        return 0
    return books.tables.hits(sequence.hashes, known // size, known)


def _guests(books: Lifecycle) -> Guests:
    """The first realtime requests, as many as one step has tokens for. Those that will only wait
    for another's prefix need no room."""
    guests: Guests = []
    tokens, size = books.config.max_num_batched_tokens, books.config.block_size
    for sequence in books.queue.first(LOOKAHEAD):
        if guests and sequence.squeezed != guests[0][0].squeezed:
            break
        known = len(sequence.tokens)
        hits = find_hits(books, sequence)
        waits = hits < min(known // size, len(sequence.hashes)) and not sequence.scores_prompt
        if waits and books.dedup.owner(sequence.hashes[hits]) is not None:
            continue
        guests.append((sequence, hits))
        tokens -= known - books.tables.resume_at(hits, known)
        if tokens <= 0:
            break
    return guests


def _admitted(books: Lifecycle, guests: Guests, without: list[Sequence]) -> int:
    """How many of the guests, in order, could begin if these rows were gone."""
    if not guests:
        return 0
    rows = books.limits.rows - len(books.running) + len(without)
    forecast = Forecast(books, guests[0][0].squeezed, without)
    count = 0
    while count < min(rows, len(guests)) and forecast.admit(*guests[count]):
        count += 1
    return count
