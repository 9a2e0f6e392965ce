"""When requests are sent: all at once, at random, or as a trace says.

Owns: the times.
Does not know: requests. Times are seconds after the run's start, ascending.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """`count` arrivals of a Poisson process of `rate` a second: gaps are exponential and know
    nothing of each other. The first gap counts too. Raises ValueError for a rate not above 0."""
    if not rate > 0:
        raise ValueError(f"rate must be above 0, not {rate}")
    generator = random.Random(f"arrivals:{seed}")
    times, now = [], 0.0
    for _ in range(count):
        now += generator.expovariate(rate)
        times.append(now)
    return times


def scaled(times: Sequence[float], scale: float) -> list[float]:
    """A trace's times from its first on, `scale` times as long: 0.5 is twice as fast.
    Raises ValueError for a scale below 0."""
    if scale < 0:
        raise ValueError(f"scale must be 0 or above, not {scale}")
    first = min(times, default=0.0)
    return [(time - first) * scale for time in times]
