"""What offline generation returns, and how it grows from the engine's outputs.

Owns: `RequestOutput`, `CompletionOutput`, and `Collector`, which builds them.
Does not know: where outputs come from (engine) or how many requests there are (llm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.core.plan import TokenLogprob
from octavo.core.request import FinishReason, Output, Submission
from octavo.engine.choices import best_choices
from octavo.text.output import ChoiceText
from octavo.text.tokenizer import Tokenizer


@dataclass(slots=True)
class CompletionOutput:
    """One generated answer. `logprobs` has an entry per token where they were asked for;
    `cumulative_logprob` is None where no logprobs were computed. `stop_reason` is the stop string
    or token id that ended it. `error` explains finish_reason "error"."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request with the best `n` of its answers so far. `prompt` is None where token ids were
    given. `prompt_logprobs` begins with None: nothing precedes the first token."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    cached_tokens: int = 0


class Collector:
    """Gathers one request's outputs, all choices."""

    def __init__(self, submission: Submission, prompt: str | None, tokenizer: Tokenizer) -> None:
        self._submission = submission
        self._prompt = prompt
        params = submission.params
        self._texts = [
            ChoiceText(tokenizer, params, submission.prompt) for _ in range(params.choices)
        ]
        self._answers = [
            CompletionOutput(index, logprobs=None if params.logprobs is None else [])
            for index in range(params.choices)
        ]
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        self._cached = 0

    @property
    def finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self._answers)

    def push(self, output: Output) -> bool:
        """Takes one output; returns whether a stop string ended the choice, so that the engine
        has to be told to end it too."""
        answer = self._answers[output.choice]
        if answer.finish_reason is not None:
            return False
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = [None, *output.prompt_logprobs]
        self._cached = max(self._cached, output.cached_tokens or 0)
        delta = self._texts[output.choice].push(output)
        answer.text += delta.text
        answer.token_ids += delta.tokens
        if self._submission.params.wants_logprob:
            answer.cumulative_logprob = output.cumulative_logprob
        if answer.logprobs is not None and output.logprobs is not None:
            answer.logprobs += output.logprobs[: len(delta.tokens)]
        answer.finish_reason = delta.finish_reason
        answer.stop_reason = delta.stop_reason
        answer.error = output.error
        return delta.abort

    def result(self) -> RequestOutput:
        """As it stands now: copies, which later outputs do not change."""
        return RequestOutput(
            self._submission.request_id,
            self._prompt,
            list(self._submission.prompt),
            self._prompt_logprobs,
            self._best(self._answers),
            self.finished,
            self._cached,
        )

    def _best(self, answers: Sequence[CompletionOutput]) -> list[CompletionOutput]:
        likelihoods = [answer.cumulative_logprob or 0.0 for answer in answers]
        chosen = best_choices(likelihoods, self._submission.params.n)
        return [
            CompletionOutput(
                index,
                answers[choice].text,
                list(answers[choice].token_ids),
                answers[choice].cumulative_logprob,
                None if (entries := answers[choice].logprobs) is None else list(entries),
                answers[choice].finish_reason,
                answers[choice].stop_reason,
                answers[choice].error,
            )
            for index, choice in enumerate(chosen)
        ]
