"""What attention on whole arrays does whatever kind of array it is: numpy's or torch's.

Owns: rotating heads, and cutting a batch into rows and chunks of queries.
Does not know: numpy or torch (both slice alike), how one chunk is computed, how a cache is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.ops import AttentionSpec


def rotate_into(out: Any, x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Writes the first 2 * cos.shape[-1] dimensions of x (tokens, heads, head_dim), rotated, to
    `out`, a copy of x; returns it."""
    half = cos.shape[-1]
    step = 2 if interleaved else 1
    low = slice(0, step * half, step)
    high = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    out[..., low] = x[..., low] * cos - x[..., high] * sin
    out[..., high] = x[..., high] * cos + x[..., low] * sin
    return out


def attend_rows(
    out: Any,
    q: Any,
    cache: Any,
    batch: Any,
    spec: AttentionSpec,
    chunk: int,
    attend: Callable[..., Any],
) -> Any:
    """Attention of q (tokens, heads * head_dim) into `out`, which it returns: row by row, `chunk`
    queries at once, each chunk over the positions that it may see. `attend` takes consecutive
    queries, keys and values, the first position of either, and the spec."""
    for row in batch.rows:
        stop = row.start + row.end - row.begin
        keys, values, first = cache.gather(
            spec.group, spec.layer, row.tables[spec.group], _lowest(row.start, spec), stop
        )
        for begin in range(row.begin, row.end, chunk):
            end = min(begin + chunk, row.end)
            position = row.start + begin - row.begin
            seen = slice(_lowest(position, spec) - first, position + end - begin - first)
            out[begin:end] = attend(
                q[begin:end], keys[seen], values[seen], position, first + seen.start, spec
            )
    return out


def _lowest(position: int, spec: AttentionSpec) -> int:
    """The first position that a query at `position` may see."""
    return max(0, position - spec.window + 1) if spec.window else 0
