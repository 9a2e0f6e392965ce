"""One request as the client half keeps it: enough to go on after the engine died.

Owns: per choice the tokens so far, cumulative logprob and finish state; the outputs that the reader
has not taken yet, merged so that a slow reader costs little.
Does not know: sockets, processes, or who reads.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from octavo.core.deadlines import late_message
from octavo.core.request import (
    DEADLINE_EXCEEDED,
    ChoiceState,
    FinishReason,
    Output,
    Refused,
    Submission,
)
from octavo.engine.poison import Suspicion


class LiveRequest:
    """From submission until every choice has finished."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self._suspicion = Suspicion()
        self.refused: Refused | None = None
        self.buffered = 0
        """Tokens and logprob entries waiting for the reader."""
        before = {state.choice: state for state in submission.resumed}
        self._choices = [
            before.get(choice) or ChoiceState(choice) for choice in range(submission.params.choices)
        ]
        self._open = sum(not state.finished for state in self._choices)
        self._pending: dict[int, Output] = {}
        self._heard: set[int] = set()
        """Choices of which the reader was told something."""
        self._handed_over = False
        self._scored = False
        """The prompt's logprobs were given."""
        self._changed = asyncio.Event()

    @property
    def request_id(self) -> str:
        return self.submission.request_id

    @property
    def finished(self) -> bool:
        """Every choice has ended (or was aborted), or the request was refused."""
        return self._open == 0 or self.refused is not None

    def accept(self, output: Output) -> None:
        """Takes what the engine sent. What belongs to a choice that has ended is dropped: it
        crossed an abort on its way."""
        state = self._choices[output.choice]
        if state.finished or self.refused is not None:
            return
        state.tokens += output.tokens
        state.cumulative_logprob = output.cumulative_logprob
        if output.choice in self._heard:
            # A resumed choice reports these anew; the reader has them.
            output.cached_tokens = output.queue_time = None
        self._scored = self._scored or output.prompt_logprobs is not None
        if output.finish_reason is not None:
            self._end(state)
        self._push(output)

    def fail(self, message: str, code: str) -> None:
        """Ends every open choice with an error."""
        for state in self._choices:
            if not state.finished:
                self._end(state)
                self._push(
                    Output(
                        self.request_id,
                        state.choice,
                        cumulative_logprob=state.cumulative_logprob,
                        finish_reason=FinishReason.ERROR,
                        error=message,
                        error_code=code,
                    )
                )

    def expire(self) -> None:
        """Its deadline has passed."""
        generated = sum(len(state.tokens) for state in self._choices)
        message = late_message(self.submission, bool(self._heard), generated)
        self.fail(message, DEADLINE_EXCEEDED)

    def refuse(self, refused: Refused) -> None:
        """The engine does not take it. An answer that has begun ends with an error instead."""
        if self._heard:
            self.fail(str(refused), refused.code)
        else:
            self.refused = refused
            self._changed.set()

    def crashed(self) -> bool:
        """The engine died while this request had rows in its step. Whether it is proven guilty."""
        self._suspicion.crashed(
            {state.choice: len(state.tokens) for state in self._choices if not state.finished}
        )
        return self._suspicion.condemned

    def abort(self, choice: int | None) -> bool:
        """Ends one choice or all without a further output, and drops what was not read of it.
        Returns whether anything was still open."""
        was_open = self._open
        for state in self._choices:
            if choice in (None, state.choice):
                if not state.finished:
                    self._end(state)
                self._drop(state.choice)
        self._changed.set()
        return self._open != was_open

    def submission_now(self) -> Submission:
        """What to hand to the engine, the first time or again: what was sent already is not sent
        again. A request that was handed over before was taken before: the engine knows it by
        `resumed`, and does not turn it away for a full queue."""
        again, self._handed_over = self._handed_over, True
        if not again and self._open == len(self._choices):
            return self.submission
        params = self.submission.params
        if self._scored:
            params = replace(params, prompt_logprobs=None)
        return replace(
            self.submission,
            params=params,
            resumed=[replace(state, tokens=list(state.tokens)) for state in self._choices],
            alone=self._suspicion.alone,
        )

    async def next(self) -> Output | None:
        """The next output, merged per choice; None after the last. Raises Refused."""
        while not self._pending:
            if self.refused is not None:
                raise self.refused
            if self._open == 0:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._drop(next(iter(self._pending)))

    def _end(self, state: ChoiceState) -> None:
        state.finished = True
        self._open -= 1

    def _push(self, output: Output) -> None:
        self._heard.add(output.choice)
        self.buffered += _cost(output)
        earlier = self._pending.get(output.choice)
        self._pending[output.choice] = output if earlier is None else _merged(earlier, output)
        self._changed.set()

    def _drop(self, choice: int) -> Output | None:
        output = self._pending.pop(choice, None)
        if output is not None:
            self.buffered -= _cost(output)
        return output


def _merged(first: Output, second: Output) -> Output:
    """Two outputs of one choice as one; `first` is extended in place."""
    first.tokens += second.tokens
    if second.logprobs is not None:
        first.logprobs = (first.logprobs or []) + second.logprobs
    if second.prompt_logprobs is not None:
        first.prompt_logprobs = (first.prompt_logprobs or []) + second.prompt_logprobs
    first.cumulative_logprob = second.cumulative_logprob
    first.finish_reason = second.finish_reason
    first.stop_reason = second.stop_reason
    first.error, first.error_code = second.error, second.error_code
    if first.cached_tokens is None:
        first.cached_tokens = second.cached_tokens
    if first.queue_time is None:
        first.queue_time = second.queue_time
    first.preemptions = max(first.preemptions, second.preemptions)
    return first


def _cost(output: Output) -> int:
    return len(output.tokens) + sum(1 + len(entry.top) for entry in output.logprobs or ())
