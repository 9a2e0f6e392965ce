"""Choosing among the choices of one request.

Owns: `best_of`: which of the generated sequences are returned.
Does not know: texts or response formats.
"""

from __future__ import annotations

from collections.abc import Sequence


def best_choices(cumulative_logprobs: Sequence[float], n: int) -> list[int]:
    """Indices of the `n` most likely of the generated choices, the likeliest first; equal ones in
    their own order. With nothing to choose (n of n) all indices in order."""
    indices = range(len(cumulative_logprobs))
    if n >= len(cumulative_logprobs):
        return list(indices)
    return sorted(indices, key=lambda index: -cumulative_logprobs[index])[:n]
