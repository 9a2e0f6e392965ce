"""Sampling and scoring on the compiled kernels.

Owns: how rows' parameters are packed into flat arrays, and results unpacked.
Does not know: how a token is found. The oracle is `reference_sampling`, to which this is equal but
for rounding.

Python touches each row a few times and no token ever: what has an entry a token goes through
iterators that run in C.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from octavo.ops import NONFINITE_LOGITS, NOTHING_ALLOWED, SampledRow, SampleRow

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_ERRORS = (None, NONFINITE_LOGITS, NOTHING_ALLOWED)
"""By the kernels' status."""

_LARGEST = 2**62
"""Bounds numbers that users may choose as large as they like (top_k, alternatives)."""

_KEY_MASK = 2**64 - 1


def sample_rows(
    native: ModuleType, pool: Any, logits: Floats, rows: Sequence[SampleRow]
) -> list[SampledRow]:
    """logits: (len(rows), vocabulary), rows possibly apart. A row that cannot be sampled has its
    `error` set. Raises ValueError or TypeError for arrays that do not fit."""
    found = native.sample(logits, **_packed(rows), pool=pool)
    return _unpacked(found, [row.top is not None for row in rows])


def score_rows(
    native: ModuleType, pool: Any, logits: Floats, targets: Sequence[int], top: int
) -> list[SampledRow]:
    """Logprobs of known tokens: row i tells of targets[i]; see `reference_sampling.score_rows`."""
    known = np.array(targets, np.int64).reshape(-1)
    found = native.score(logits, known, min(top, _LARGEST), pool)
    return _unpacked(found, [True] * known.size)


def _packed(rows: Sequence[SampleRow]) -> dict[str, NDArray[Any]]:
    """The arguments of the kernel that describe the rows."""
    penalised = [
        r.repetition_penalty != 1.0 or r.presence_penalty != 0.0 or r.frequency_penalty != 0.0
        for r in rows
    ]
    prompts = [r.prompt_counts if r.repetition_penalty != 1.0 else {} for r in rows]
    outputs = [r.output_counts if p else {} for r, p in zip(rows, penalised, strict=True)]
    biases = [r.logit_bias for r in rows]
    banned = [r.banned for r in rows]
    masks = [r.mask or b"" for r in rows]
    keys = [(r.seed & _KEY_MASK, r.choice & _KEY_MASK, r.position & _KEY_MASK) for r in rows]
    numbers = [
        (
            r.temperature,
            r.top_p,
            r.min_p,
            r.repetition_penalty,
            r.presence_penalty,
            r.frequency_penalty,
        )
        for r in rows
    ]
    limits = [
        (
            min(max(r.top_k, 0), _LARGEST),
            -1 if r.top is None else min(r.top, _LARGEST),
            r.mask is not None,
        )
        for r in rows
    ]
    return {
        "keys": np.array(keys, np.uint64).reshape(-1, 3),
        "numbers": np.array(numbers, np.float64).reshape(-1, 6),
        "limits": np.array(limits, np.int64).reshape(-1, 3),
        "prompt_starts": _starts(prompts),
        "prompt_ids": _flat(prompts, np.int64),
        "output_starts": _starts(outputs),
        "output_ids": _flat(outputs, np.int64),
        "output_counts": _flat([counts.values() for counts in outputs], np.float32),
        "bias_starts": _starts(biases),
        "bias_ids": _flat(biases, np.int64),
        "biases": _flat([bias.values() for bias in biases], np.float32),
        "banned_starts": _starts(banned),
        "banned_ids": _flat(banned, np.int64),
        "mask_starts": _starts(masks),
        "masks": np.frombuffer(b"".join(masks), np.uint8),
    }


def _starts(parts: Sequence[Collection[Any]]) -> Ids:
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return starts


def _flat(parts: Iterable[Iterable[Any]], dtype: DTypeLike) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(parts), dtype)


def _unpacked(found: tuple[NDArray[Any], ...], wanted: Sequence[bool]) -> list[SampledRow]:
    """`found`: what the kernel returns; `wanted`: whether a row's logprobs were asked for."""
    statuses, tokens, logprobs, ranks, starts, ids, of_ids = (array.tolist() for array in found)
    rows = []
    for i, status in enumerate(statuses):
        if status != 0 or not wanted[i]:
            rows.append(SampledRow(tokens[i], error=_ERRORS[status]))
            continue
        part = slice(starts[i], starts[i + 1])
        top = list(zip(ids[part], of_ids[part], strict=True))
        rows.append(SampledRow(tokens[i], logprobs[i], ranks[i], top))
    return rows
