"""One row of a plan, from a sequence's state.

Owns: what a row says, and the state that its being in flight means.
Does not know: why this row is in this step (planner).
"""

from __future__ import annotations

from octavo.core.events import EventKind
from octavo.core.lifecycle import Lifecycle
from octavo.core.plan import PENDING, Admitted, Row, StepPlan, Want
from octavo.core.sequence import Sequence

_WANTS = {
    (False, False): Want.NONE,
    (True, False): Want.SAMPLE,
    (False, True): Want.PROMPT_LOGPROBS,
    (True, True): Want.SAMPLE | Want.PROMPT_LOGPROBS,
}
"""By (samples, scores the prompt): composing flags for every row would cost more than the row."""


def place_row(books: Lifecycle, plan: StepPlan, sequence: Sequence, count: int) -> None:
    """Add the sequence's next `count` tokens to the plan. Their blocks must be available."""
    start = sequence.start
    end = start + count
    write_from = max(start, sequence.write_from)
    copies = books.tables.grow(sequence.tables, write_from, end)
    plan.copies += copies
    books.counters.copies += len(copies)
    if not sequence.introduced:
        sequence.introduced = True
        plan.admitted.append(_introduce(sequence))
    tokens = sequence.tokens[start:end]
    if len(tokens) < count:
        tokens.append(PENDING)
    samples = end == sequence.known and sequence.samples
    scored = _last_scored(sequence, end)
    scores = scored > sequence.scored and sequence.scores_prompt
    blocks = books.tables.blocks_for(end)
    plan.rows.append(
        Row(
            rid=sequence.rid,
            start=start,
            tokens=tokens,
            tables=tuple(table[:blocks] for table in sequence.tables),
            write_from=write_from,
            logits_from=sequence.scored - start if scores else count - samples,
            want=_WANTS[samples, scores],
            next_token=sequence.tokens[end] if scores and scored == end else None,
            adapter=sequence.live.submission.adapter,
        )
    )
    sequence.in_flight += count
    sequence.rows_in_flight += 1
    sequence.planned_step = plan.step
    sequence.pending += samples
    if scores:
        sequence.scored = scored
    books.emit(EventKind.ROW, sequence, count)


def _introduce(sequence: Sequence) -> Admitted:
    submission = sequence.live.submission
    return Admitted(
        rid=sequence.rid,
        params=submission.params,
        seed=submission.seed,
        choice=sequence.choice,
        prompt_len=sequence.prompt_len,
        history=list(sequence.tokens),
    )


def _last_scored(sequence: Sequence, end: int) -> int:
    """Prompt logprobs exist for the tokens after positions below this, in a row up to `end`."""
    return min(end, sequence.prompt_len - 1)
