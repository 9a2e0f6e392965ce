"""Sampling and scoring of logits in numpy, one row at a time.

Owns: penalties, filters, the draw, logprobs.
Does not know: the model, the batch, stop conditions.

Order of work on a row, as users of the field's other engines expect: repetition, frequency and
presence penalties, logit bias, grammar mask, bans; then temperature; then top-k, top-p (within
what top-k left) and min-p (against the best probability). Ties go to the lowest token id. The
draw is by noise keyed by (seed, choice, position, token id), so neighbours in the batch cannot
matter. Logprobs are those of the raw logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.ops import NONFINITE_LOGITS, NOTHING_ALLOWED, SampledRow, SampleRow
from octavo.ops.noise import exponential

LOGPROB_FLOOR = -9999.0
"""Reported in place of -inf, which JSON cannot say."""

_COLDEST = 1e-30
"""Temperatures below it are greedy to the last bit already, and would be 0 in float32."""

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@np.errstate(over="ignore", divide="ignore")
def sample_rows(logits: Floats, rows: Sequence[SampleRow]) -> list[SampledRow]:
    """logits: (len(rows), vocabulary). A row that cannot be sampled has its `error` set."""
    return [_sample(logits[i], row) for i, row in enumerate(rows)]


def score_rows(logits: Floats, targets: Sequence[int], top: int) -> list[SampledRow]:
    """Logprobs of known tokens: row i tells of targets[i] (a target outside the vocabulary gets
    the floor)."""
    return [
        _describe(logits[i], int(target), top)
        if _finite(logits[i])
        else SampledRow(int(target), error=NONFINITE_LOGITS)
        for i, target in enumerate(targets)
    ]


def top_ids(values: Floats, count: int) -> Ids:
    """The ids of the `count` largest values, best first, ties to the lowest id. No full sort."""
    size = values.shape[0]
    if count < size:
        threshold = np.partition(values, size - count)[size - count]
        above = np.flatnonzero(values > threshold)
        level = np.flatnonzero(values == threshold)[: count - above.size]
        chosen = np.concatenate([above, level])
    else:
        chosen = np.arange(size)
    order = np.lexsort((chosen, -values[chosen]))
    ordered: Ids = chosen[order]
    return ordered


def _finite(logits: Floats) -> bool:
    """No NaN, no +inf, and something above -inf (max propagates NaN)."""
    return bool(np.isfinite(logits.max()))


def _sample(logits: Floats, row: SampleRow) -> SampledRow:
    if not _finite(logits):
        return SampledRow(-1, error=NONFINITE_LOGITS)
    adjusted = _adjust(logits, row)
    best = int(np.argmax(adjusted))
    if adjusted[best] == np.inf:  # a penalty can overflow
        return SampledRow(-1, error=NONFINITE_LOGITS)
    if adjusted[best] == -np.inf:
        return SampledRow(-1, error=NOTHING_ALLOWED)
    greedy = row.temperature == 0.0 or row.top_k == 1 or row.top_p == 0.0
    token = best if greedy else _draw(adjusted, adjusted[best], row)
    return SampledRow(token) if row.top is None else _describe(logits, token, row.top)


def _adjust(logits: Floats, row: SampleRow) -> Floats:
    """Penalties, bias, mask and bans. Returns `logits` itself if there is nothing to do."""
    penalised = (
        row.repetition_penalty != 1.0 or row.frequency_penalty != 0.0 or row.presence_penalty != 0.0
    )
    if not (penalised or row.logit_bias or row.mask is not None or len(row.banned)):
        return logits
    out = logits.copy()
    if row.repetition_penalty != 1.0:
        seen = _known(row.prompt_counts.keys() | row.output_counts.keys(), out.size)
        factor = np.float32(row.repetition_penalty)
        out[seen] = np.where(out[seen] > 0, out[seen] / factor, out[seen] * factor)
    if row.output_counts and penalised:
        made = _known(row.output_counts, out.size)
        counts = np.fromiter((row.output_counts[int(t)] for t in made), np.float32, made.size)
        out[made] -= counts * np.float32(row.frequency_penalty) + np.float32(row.presence_penalty)
    if row.logit_bias:
        biased = _known(row.logit_bias, out.size)
        out[biased] += np.fromiter((row.logit_bias[int(t)] for t in biased), np.float32)
    if row.mask is not None:
        allowed = np.zeros(out.size, bool)
        bits = np.unpackbits(np.frombuffer(row.mask, np.uint8), bitorder="little")[: out.size]
        allowed[: bits.size] = bits
        out[~allowed] = -np.inf
    if len(row.banned):
        out[_known(row.banned, out.size)] = -np.inf
    return out


def _known(ids: Sequence[int] | set[int] | dict[int, int] | dict[int, float], size: int) -> Ids:
    """The ids that are inside the vocabulary, ascending and once each."""
    return np.array(sorted({t for t in ids if 0 <= t < size}), np.int64)


def _draw(adjusted: Floats, best: np.float32, row: SampleRow) -> int:
    """A draw from the filtered softmax at the row's temperature."""
    size = adjusted.size
    ids = np.sort(top_ids(adjusted, row.top_k)) if 0 < row.top_k < size else np.arange(size)
    # The best has weight 1 and the others less: nothing overflows, however small the temperature.
    weights = np.exp((adjusted[ids] - best) / np.float32(max(row.temperature, _COLDEST)))
    if row.top_p < 1.0:
        kept = _nucleus(weights, row.top_p)
        ids, weights = ids[kept], weights[kept]
    if row.min_p > 0.0:
        likely = weights >= row.min_p
        ids, weights = ids[likely], weights[likely]
    race = exponential(row.seed, row.choice, row.position, ids) / weights
    return int(ids[np.argmin(race)])


def _nucleus(weights: Floats, top_p: float) -> Ids:
    """Indices of the smallest set of most likely entries whose share reaches `top_p`, ascending.

    Only as many entries are sorted as the set needs, found by growing steps.
    """
    goal = top_p * float(weights.sum(dtype=np.float64))
    count = min(64, weights.size)
    while True:
        order = top_ids(weights, count)
        mass = np.cumsum(weights[order], dtype=np.float64)
        if mass[-1] >= goal or count == weights.size:
            break
        count = min(16 * count, weights.size)
    size = int(np.searchsorted(mass, goal)) + 1
    return np.sort(order[:size])


def _describe(logits: Floats, token: int, top: int) -> SampledRow:
    """Raw logprob and rank of `token`, and the `top` best alternatives."""
    wide = logits.astype(np.float64)
    best = wide.max()
    total = best + np.log(np.exp(wide - best).sum())
    alternatives = [
        (int(i), _floor(wide[i] - total)) for i in (top_ids(logits, top) if top > 0 else ())
    ]
    if not 0 <= token < logits.size:
        return SampledRow(token, LOGPROB_FLOOR, logits.size + 1, alternatives)
    rank = 1 + int(np.count_nonzero(logits > logits[token]))
    return SampledRow(token, _floor(wide[token] - total), rank, alternatives)


def _floor(logprob: float) -> float:
    return max(float(logprob), LOGPROB_FLOOR)
