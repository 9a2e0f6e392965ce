"""From a step's result to outputs: tokens committed, blocks published, sequences ended.

Owns: what a result means for each sequence of its plan, and the rules for stopping.
Does not know: how the next step is chosen.

The one loop over all rows of a step is here. A row of a sequence that has ended meanwhile (a stop
that was found while its next row was in flight, or an abort) is discarded. A row that failed ends
all choices of its request with an error, and nothing of any other request.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.lifecycle import Lifecycle
from octavo.core.plan import RowResult, StepPlan, StepResult
from octavo.core.prefix import extend_hashes
from octavo.core.request import FinishReason, Output
from octavo.core.sequence import Sequence, State


@dataclass(slots=True)
class Flight:
    """A planned row that was not collected yet."""

    sequence: Sequence
    count: int
    samples: bool
    scores: bool


def commit_rows(
    books: Lifecycle, flights: list[Flight], plan: StepPlan, result: StepResult, now: float
) -> list[Output]:
    """Apply `result` to the sequences of `flights` (one a row of `plan`)."""
    outputs: list[Output] = []
    books.wake(books.tier.finished(result.finished_transfers))
    for index, flight in enumerate(flights):
        sequence = flight.sequence
        sequence.in_flight -= flight.count
        sequence.rows_in_flight -= 1
        sequence.pending -= flight.samples
        if sequence.state is State.FINISHED:
            books.collected(sequence)
            continue
        error = result.errors.get(sequence.rid)
        answer = result.rows[index] if index < len(result.rows) else RowResult()
        if error is None:
            error = _unanswered(flight, answer)
        if error is not None:
            outputs += books.fail(sequence.live, error, "row_failed")
            continue
        outputs += _commit_row(books, flight, answer, now)
        if sequence.yields and not sequence.rows_in_flight:
            books.preempt(sequence, sequence.yields_to)
    return outputs


def _unanswered(flight: Flight, answer: RowResult) -> str | None:
    if flight.samples and not answer.tokens:
        return "the executor returned no token for a row that samples"
    if flight.scores and answer.prompt_logprobs is None:
        return "the executor returned no prompt logprobs for a row that asks for them"
    return None


def _commit_row(books: Lifecycle, flight: Flight, answer: RowResult, now: float) -> list[Output]:
    sequence, live = flight.sequence, flight.sequence.live
    sequence.computed += flight.count
    books.counters.computed_tokens += flight.count
    _publish(books, sequence)
    if flight.scores:
        live.prompt_logprobs += answer.prompt_logprobs or ()
    prompt_done = sequence.computed >= sequence.prompt_len
    if prompt_done and sequence.samples and live.leader is sequence and live.forks:
        books.fork(sequence, now)
    # After the forks have taken their share: they see one token more.
    if books.tables.windowed:
        books.counters.reclaim("window", books.tables.slide(sequence.tables, sequence.computed))
    if not sequence.samples:
        return _end_of_prompt(books, sequence) if prompt_done else []
    if not flight.samples:
        return []
    return [_extend(books, sequence, answer, now)]


def _publish(books: Lifecycle, sequence: Sequence) -> None:
    """Make the blocks that are full of committed tokens findable."""
    if not books.config.enable_prefix_caching:
        return
    full = sequence.computed // books.config.block_size
    if full > sequence.published:
        extend_hashes(sequence.hashes, sequence.live.root, sequence.tokens, books.config.block_size)
    while sequence.published < full:
        content = sequence.hashes[sequence.published]
        books.tables.publish(sequence.tables, sequence.published, content)
        sequence.published += 1
        books.tier.published(content)
        books.wake(books.dedup.published(content))


def _end_of_prompt(books: Lifecycle, sequence: Sequence) -> list[Output]:
    """max_tokens 0: the prompt was all there was to do, for every choice."""
    first = _give_prompt_logprobs(sequence, books.output(sequence))
    outputs = [books.finish(sequence, FinishReason.LENGTH, first)]
    outputs += [
        books.finish(other, FinishReason.LENGTH)
        for other in list(sequence.live.sequences)
        if other.state is not State.FINISHED
    ]
    return outputs


def _extend(books: Lifecycle, sequence: Sequence, answer: RowResult, now: float) -> Output:
    """Append the sampled tokens up to a stop; the output that tells of them."""
    reason: FinishReason | None = None
    stop: int | None = None
    taken = 0
    for token in answer.tokens:
        sequence.tokens.append(token)
        taken += 1
        reason, stop = stops(sequence, token, books.config.eos_token_ids)
        if reason is not None:
            break
    books.counters.generated_tokens += taken
    logprobs = answer.logprobs[:taken] if answer.logprobs is not None else None
    if logprobs is not None:
        sequence.cumulative_logprob += sum(entry.logprob for entry in logprobs)
    output = _give_prompt_logprobs(sequence, books.output(sequence))
    output.tokens = answer.tokens[:taken]
    if sequence.live.submission.params.logprobs is not None:
        output.logprobs = logprobs
    if reason is not None:
        if sequence.live.started is not None:
            books.limits.note_latency(now - sequence.live.started, len(books.running))
        books.finish(sequence, reason, output)
        output.stop_reason = stop
    return output


def stops(
    sequence: Sequence, token: int, eos_token_ids: tuple[int, ...]
) -> tuple[FinishReason | None, int | None]:
    """Whether the sequence ends with `token`, its last one, and the token id that stopped it.

    Before `min_tokens` nothing but the length stops. `ignore_eos` ignores the model's EOS ids, not
    the request's own stop_token_ids.
    """
    params = sequence.live.submission.params
    if sequence.outputs >= params.min_tokens:
        is_eos = token in eos_token_ids and not params.ignore_eos
        if is_eos or token in params.stop_token_ids:
            return FinishReason.STOP, token
    if len(sequence.tokens) >= sequence.limit:
        return FinishReason.LENGTH, None
    return None, None


def _give_prompt_logprobs(sequence: Sequence, output: Output) -> Output:
    """Prompt logprobs go with the request's first output, once."""
    live = sequence.live
    if live.logprobs_due and live.leader is sequence:
        output.prompt_logprobs = live.prompt_logprobs
        live.logprobs_due = False
    return output
