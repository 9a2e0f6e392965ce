"""Whether one more sequence may begin: by the predicted peak of block use.

Owns: the running quantiles of output lengths, and the peak formula.
Does not know: tables or queues; it sees numbers.

The formula (the idea is LightLLM's): sort the members by the tokens they will still produce,
descending. When the k-th of them ends, k are left and each has grown by remaining_k, so

    peak = max over k of (remaining_k * k / block_size + blocks held by the first k)

where each physical block counts once. Short requests leave before long ones peak, so that many more
fit than if each were counted at its full length. Lengths are guesses; preemption is the net. A
sequence that was preempted before is let in again by more careful guesses, and after its second
preemption only if all fit to their limits: this bounds how often it can happen.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence

WINDOW = 512
PRIOR_OUTPUTS = 256
"""What is expected of a request while little was observed."""
MIN_OBSERVED = 8
QUANTILES = (0.8, 0.95)


class OutputLengths:
    """The lengths of the outputs that ended last."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def record(self, outputs: int) -> None:
        if len(self._recent) == WINDOW:
            old = self._recent.popleft()
            del self._sorted[bisect_right(self._sorted, old) - 1]
        self._recent.append(outputs)
        insort(self._sorted, outputs)

    def remaining(self, outputs: int, limit: int, caution: int) -> int:
        """How many tokens a sequence with `outputs` of at most `limit` will still produce.

        `caution` 0 and 1 take a quantile of those observed outputs that are longer than
        `outputs`; from 2 on it is all that the limit allows.
        """
        most = max(0, limit - outputs)
        if caution >= len(QUANTILES):
            return most
        tail = bisect_right(self._sorted, outputs)
        longer = len(self._sorted) - tail
        if longer and len(self._sorted) >= MIN_OBSERVED:
            index = min(longer - 1, int(QUANTILES[caution] * longer))
            return min(most, self._sorted[tail + index] - outputs)
        # Nothing seen was as long: the longer it has run, the longer it may still run.
        return min(most, max(PRIOR_OUTPUTS - outputs, outputs // 2, 1))


def peak_blocks(
    members: Sequence[tuple[int, int]], held: int, block_size: int, cautious: bool
) -> int:
    """The highest number of blocks in use from now on, if nobody else begins.

    `members` are pairs (tokens to come, blocks that only this one holds), ascending; `held` counts
    the blocks that all of them hold or are sure to need, each once. `cautious` rounds each one's
    growth up to blocks; otherwise that is taken to cancel out with the room in their last blocks.
    """
    peak = held
    count = len(members)
    for remaining, exclusive in members:
        growth = (
            count * (-(-remaining // block_size))
            if cautious
            else (-(-(count * remaining) // block_size))
        )
        peak = max(peak, held + growth)
        held -= exclusive
        count -= 1
    return peak
