"""From a step's rows to the flat batch that ops take, and which logits answer which row.

Owns: `Work` (a row that is fit to run), `Assembled`, the order of the logit rows.
Does not know: ops, sampling, why rows were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.core.plan import Row, Want
from octavo.ops import HostBatch


@dataclass(slots=True)
class Work:
    """Row `index` of the plan, its tokens resolved."""

    index: int
    row: Row
    tokens: list[int]


@dataclass(slots=True)
class Score:
    """One known token to be scored: `target` of row `index`."""

    index: int
    target: int


@dataclass(slots=True)
class Assembled:
    """`batch.logit_tokens` are first those of `samples` (rows by index in the plan), then those of
    `scores`, so that either kind is one slice."""

    batch: HostBatch
    samples: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)


def assemble(work: Sequence[Work], block_size: int, groups: int) -> Assembled:
    """Flatten `work`, in order."""
    batch = HostBatch(block_size, tables=[[] for _ in range(groups)])
    out = Assembled(batch)
    score_tokens: list[int] = []
    for r, item in enumerate(work):
        row, first = item.row, len(batch.ids)
        batch.ids += item.tokens
        batch.positions += range(row.start, row.start + len(item.tokens))
        batch.row_of += [r] * len(item.tokens)
        batch.row_starts.append(len(batch.ids))
        batch.write_from.append(row.write_from)
        for group, table in enumerate(row.tables):
            batch.tables[group].append(table)
        if row.want & Want.SAMPLE:
            batch.logit_tokens.append(len(batch.ids) - 1)
            out.samples.append(item.index)
        if row.want & Want.PROMPT_LOGPROBS:
            known = item.tokens[row.logits_from + 1 :]
            if row.next_token is not None:
                known.append(row.next_token)
            score_tokens += range(first + row.logits_from, first + row.logits_from + len(known))
            out.scores += [Score(item.index, target) for target in known]
    batch.logit_tokens += score_tokens
    return out
