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
    keys = [(r.seed & _KEY_MASK, r.choice & _KEY_MASK, r.position & _KEY_MASK) for r in rows]
    told = native.sample(
        logits,
        np.array(keys, np.uint64).reshape(-1, 3),
        np.array([_numbers(row) for row in rows], np.float64).reshape(-1, 6),
        np.array([_limits(row) for row in rows], np.int64).reshape(-1, 3),
        pool,
        **_lists(rows),
    )
    return _unpacked(told)


def score_rows(
    native: ModuleType, pool: Any, logits: Floats, targets: Sequence[int], top: int
) -> list[SampledRow]:
    """Logprobs of known tokens: row i tells of targets[i]; see `reference_sampling.score_rows`."""
    known = np.array(targets, np.int64).reshape(-1)
    return _unpacked(native.score(logits, known, min(top, _LARGEST), pool))


def _numbers(row: SampleRow) -> tuple[float, ...]:
    return (
        row.temperature,
        row.top_p,
        row.min_p,
        row.repetition_penalty,
        row.presence_penalty,
        row.frequency_penalty,
    )


def _limits(row: SampleRow) -> tuple[int, int, bool]:
    top = -1 if row.top is None else min(row.top, _LARGEST)
    return min(max(row.top_k, 0), _LARGEST), top, row.mask is not None


def _lists(rows: Sequence[SampleRow]) -> dict[str, tuple[NDArray[Any], ...]]:
    """What has an entry a token, by row: the lists that are not empty for all rows."""
    lists: dict[str, tuple[NDArray[Any], ...]] = {}
    prompts = [r.prompt_counts if r.repetition_penalty != 1.0 else {} for r in rows]
    outputs = [r.output_counts if _penalised(r) else {} for r in rows]
    biases = [r.logit_bias for r in rows]
    banned = [r.banned for r in rows]
    masks = [r.mask or b"" for r in rows]
    if any(prompts):
        lists["prompt"] = (_starts(prompts), _flat(prompts, np.int64))
    if any(outputs):
        counts = _flat([one.values() for one in outputs], np.float32)
        lists["output"] = (_starts(outputs), _flat(outputs, np.int64), counts)
    if any(biases):
        values = _flat([one.values() for one in biases], np.float32)
        lists["bias"] = (_starts(biases), _flat(biases, np.int64), values)
    if any(banned):
        lists["banned"] = (_starts(banned), _flat(banned, np.int64))
    if any(masks):
        lists["mask"] = (_starts(masks), np.frombuffer(b"".join(masks), np.uint8))
    return lists


def _penalised(row: SampleRow) -> bool:
    return (
        row.repetition_penalty != 1.0 or row.presence_penalty != 0.0 or row.frequency_penalty != 0.0
    )


def _starts(parts: Sequence[Collection[Any]]) -> Ids:
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return starts


def _flat(parts: Iterable[Iterable[Any]], dtype: DTypeLike) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(parts), dtype)


def _unpacked(
    told: Iterable[tuple[int, int, float, int, list[tuple[int, float]]]],
) -> list[SampledRow]:
    return [
        SampledRow(token, logprob, rank, top, _ERRORS[status])
        for status, token, logprob, rank, top in told
    ]
