"""Counter-based noise: a token's noise depends on (seed, choice, position, token id) alone.

Owns: the mixing of the key and the map from bits to noise. Every backend must reproduce it.
Does not know: logits, batches, requests.

The generator is SplitMix64 used as a counter-based one (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014): output i of the stream that begins at `key` is
mix64(key + (i + 1) * GOLDEN), so any token's noise can be had without its neighbours'.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def mix64(z: int) -> int:
    """SplitMix64's finaliser, a bijection of 64-bit integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def stream_key(seed: int, choice: int, position: int) -> int:
    """Where the stream of one sampled token begins: the three are mixed in one after another."""
    key = 0
    for part in (seed, choice, position):
        key = mix64((key + GOLDEN + part) & _MASK)
    return key


def exponential(
    seed: int, choice: int, position: int, ids: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Standard exponential noise for each token id: positive and finite.

    The argmin over tokens of noise / weight is a draw in proportion to the weights (an exponential
    race; with weights exp(logit) its -log is the Gumbel-max trick, at half the logarithms).
    """
    key = np.uint64(stream_key(seed, choice, position))
    z = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    uniform = ((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # never 0, never 1
    noise: NDArray[np.float64] = -np.log(uniform)
    return noise
