"""Blocks that lie before a window are never read, whatever a block table says of them: the
scheduler has given them back, and they may hold anything."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.ops import AttentionSpec, CacheLayout, HostBatch
from octavo.ops.native import native_available
from octavo.ops.select import select_ops

BLOCK, POOL, LENGTH = 16, 90, 1200
GARBAGE = 0
"""The block of garbage."""


BACKENDS = {
    "reference": ("reference", "float32", 1),
    "row at a time": ("reference", "float32", 1),
}
"""Name, type of the cache, threads."""
if native_available():
    BACKENDS |= {
        f"{dtype}, {threads} threads": ("cpu", dtype, threads)
        for threads in (1, 3)
        for dtype in ("float32", "bfloat16", "int8")
    }
ROWS = [(0, 1), (15, 3), (16, 1), (100, 70), (639, 2), (655, 300), (LENGTH - 1, 1)]
"""First position and tokens."""


def batch_of(table: list[int], start: int, count: int) -> HostBatch:
    return HostBatch(
        BLOCK,
        ids=[0] * count,
        positions=list(range(start, start + count)),
        row_of=[0] * count,
        row_starts=[0, count],
        tables=[[table]],
        write_from=[start],
    )


@pytest.mark.parametrize("window", [1, 2, 16, 17, 40, 600])
@pytest.mark.parametrize("name", BACKENDS)
def test_blocks_before_the_window_are_never_read(name: str, window: int) -> None:
    backend, dtype, threads = BACKENDS[name]
    rows = name == "row at a time"
    ops = select_ops(backend, threads=threads, row_at_a_time=rows)
    spec = AttentionSpec(0, 4, 2, 32, 0.2, window=window)
    cache = ops.allocate_cache(CacheLayout(BLOCK, (1,), 2, 32, dtype), [POOL])
    rng = np.random.default_rng(window)

    def store(table: list[int], start: int, count: int, value: float | None = None) -> None:
        k, v = (rng.normal(0, 1, (count, 64)).astype(np.float32) for _ in "kv")
        if value is not None:
            k[:], v[:] = value, value
        batch = ops.upload(batch_of(table, start, count))
        ops.rope_and_store(q[:count], k, v, cache, batch, None, spec)

    q = rng.normal(0, 1, (LENGTH, 128)).astype(np.float32)
    table = (rng.permutation(POOL - 1) + 1).tolist()[: LENGTH // BLOCK]
    store(table, 0, LENGTH)
    store([GARBAGE], 0, BLOCK, np.inf if dtype == "int8" else np.nan)
    for start, count in [
        (0, 1),
        (15, 3),
        (16, 1),
        (100, 70),
        (639, 2),
        (655, 300),
        (LENGTH - 1, 1),
    ]:
        given_back = max(0, start - window + 1) // BLOCK
        end = -(-(start + count) // BLOCK)
        slid = [GARBAGE] * given_back + table[given_back:end]
        own = q[start : start + count]
        whole, without = (
            ops.attention(own, cache, ops.upload(batch_of(blocks, start, count)), spec)
            for blocks in (table[:end], slid)
        )
        assert np.isfinite(whole).all()
        assert whole.tobytes() == without.tobytes(), (start, count)
    seen = [GARBAGE] * len(table)
    poisoned = ops.attention(q[-1:], cache, ops.upload(batch_of(seen, LENGTH - 1, 1)), spec)
    assert not np.isfinite(poisoned).all(), "the garbage is none"
