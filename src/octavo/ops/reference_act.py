"""Activation functions in numpy, plain and gated.

Owns: their names and formulas.
Does not know: where a model uses them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def activate(x: Floats, kind: str) -> Floats:
    """(tokens, n) -> (tokens, n); a kind "..._gated" takes (tokens, 2 n), gate first.

    Raises ValueError for an unknown kind.
    """
    plain = kind.removesuffix("_gated")
    if plain not in _FUNCTIONS:
        raise ValueError(f"unknown activation {kind!r}; known are {', '.join(_FUNCTIONS)}")
    if plain == kind:
        return _FUNCTIONS[plain](x)
    half = x.shape[-1] // 2
    return _FUNCTIONS[plain](x[..., :half]) * x[..., half:]


def _silu(x: Floats) -> Floats:
    return np.asarray(x / (np.float32(1) + np.exp(-x)), np.float32)


def _gelu(x: Floats) -> Floats:
    """x times the normal distribution function."""
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * _erfc(-wide * 0.5**0.5), np.float32)


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32((2.0 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + np.tanh(inner)), np.float32)


def _relu(x: Floats) -> Floats:
    return np.maximum(x, np.float32(0))


_CHEBYSHEV = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


def _erfc(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Complementary error function, relative error below 1.2e-7 (a Chebyshev fit; Press et al.,
    "Numerical Recipes", chapter 6.2). numpy has none."""
    t = 1.0 / (1.0 + 0.5 * np.abs(x))
    fit = np.polyval(_CHEBYSHEV[::-1], t)
    tail = t * np.exp(-x * x + fit)
    return np.where(x >= 0, tail, 2.0 - tail)


_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
}
