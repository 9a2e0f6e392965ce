"""When would a request that comes now begin, and when would it end?

Owns: the prediction.
Does not know: bounds and deadlines, or what follows from it (intake).

    queue        seconds until its first row: the larger of two estimates,
                 prompts:  prompt tokens to be computed before it, at the rate of recent prompts;
                 rows:     requests that must begin before it, at the rate at which waiting ones
                           begin; until that was observed, at the rate at which those that run are
                           expected to end
    first_token  queue, and its own prompt
    end          first_token, and as many steps as it is expected to have outputs

Both estimates count only what is certain to come before it. An idle engine, or one that has not
been seen to work yet, predicts nothing: 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.lifecycle import Lifecycle
from octavo.core.request import Submission
from octavo.core.throughput import Throughput


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds from now."""

    queue: float
    first_token: float
    end: float


def predict(books: Lifecycle, throughput: Throughput, submission: Submission) -> Prediction:
    step, rate = throughput.step_seconds, throughput.prompt_tokens_per_second
    if step is None or rate is None:
        return Prediction(0.0, 0.0, 0.0)
    ahead = books.demand.ahead_of(submission.service_class)
    prompts = sum(backlog.tokens for backlog in ahead) + sum(
        max(0, sequence.prompt_len - sequence.start) for sequence in books.running
    )
    queue = max(prompts / rate, _rows_delay(books, submission, step))
    first_token = queue + len(submission.prompt) / rate
    most = submission.params.max_tokens
    limit = books.config.max_model_len - len(submission.prompt)
    outputs = books.lengths.remaining(0, limit if most is None else min(limit, most), 0)
    return Prediction(queue, first_token, first_token + outputs * step)


def _rows_delay(books: Lifecycle, submission: Submission, step: float) -> float:
    """Seconds until a row is free for it."""
    ahead = books.demand.ahead_of(submission.service_class)
    # Rows that are free while requests were left waiting are of no use: memory is short.
    held_up = any(backlog.left for backlog in ahead)
    free = 0 if held_up else books.config.max_running - len(books.running)
    before = sum(backlog.requests for backlog in ahead) + 1 - free
    if before <= 0:
        return 0.0
    per_second = ahead[0].starts_per_second
    if per_second is None:
        per_second = _ends_per_second(books, step)
        return before / per_second if per_second else 0.0
    # Those of another class that go first are part of the rate at which this one is seen to move.
    own = ahead[0].requests + 1 if held_up or len(ahead) == 1 else before
    return min(before, own) / per_second


def _ends_per_second(books: Lifecycle, step: float) -> float:
    """How often one of those that run is expected to end."""
    total = 0.0
    for sequence in books.running:
        most = sequence.limit - sequence.prompt_len
        left = books.lengths.remaining(sequence.outputs, most, 0)
        total += 1 / (max(1, left) * step)
    return total
