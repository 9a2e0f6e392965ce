"""ALiBi's slopes (arXiv 2108.12409): how fast each head's attention falls with distance.

Owns: the slopes of any number of heads.
Does not know: configurations.
"""

from __future__ import annotations

import math


def alibi_slopes(heads: int, largest: float = 8.0) -> tuple[float, ...]:
    """A geometric sequence down to 2 ** -largest; heads beyond a power of two get the odd members
    of the sequence for twice as many."""
    power = 1 << int(math.log2(heads))
    first = [2.0 ** (-largest * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-largest * i / (2 * power)) for i in range(1, 2 * power, 2)]
    return tuple(first + between[: heads - power])
