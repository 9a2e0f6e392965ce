"""From a submission to sequences, or to a refusal with numbers.

Owns: what is taken, what is refused and why, and how a resumed request is rebuilt.
Does not know: when anything runs.

Refusals (`Refused.code`):
    empty_prompt              no token to start from
    duplicate_request_id      a request of this id is unfinished
    context_length_exceeded   the prompt leaves no room for one token within max_model_len
    request_too_large         the blocks of the prompt (and of one more token for each choice)
                              exceed the whole pool of a KV group: it could never run
    queue_full                too many requests or tokens wait; `retry_after` says for how long
    queue_delay               it would wait longer than max_queue_delay; `retry_after` as above
    deadline_unreachable      with all that wait before it, it would miss its own deadline;
                              `retry_after` as above
    deadline_exceeded         its deadline has passed already

queue_full, queue_delay and deadline_unreachable are about load: an engine at rest takes the same
request.

A prompt plus max_tokens beyond the context or the pool is taken: the sequence ends there with
finish_reason "length".
"""

from __future__ import annotations

from octavo.core.deadlines import late_message
from octavo.core.delay import predict
from octavo.core.lifecycle import Lifecycle
from octavo.core.prefix import root_hash
from octavo.core.request import (
    DEADLINE_EXCEEDED,
    ChoiceState,
    FinishReason,
    Refused,
    ServiceClass,
    Submission,
)
from octavo.core.sequence import Live, Sequence, State, Wait
from octavo.core.throughput import Throughput, whole_seconds


class Intake:
    def __init__(self, books: Lifecycle, throughput: Throughput) -> None:
        self._books = books
        self._config = books.config
        self._throughput = throughput
        self.next_rid = 0

    def accept(self, submission: Submission, hashes: list[bytes], now: float) -> Live | None:
        """The request's sequences, not entered yet; None if all its choices were finished."""
        self._refuse_unfit(submission)
        if not submission.resumed:
            # Resumed requests were taken before; a crash must not turn them away.
            self._refuse_full(submission)
            self._refuse_late(submission, now)
        states = [
            state
            for state in submission.resumed
            or [ChoiceState(choice) for choice in range(submission.params.choices)]
            if not state.finished
        ]
        if not states:
            return None
        live = Live(
            submission,
            root_hash(self._config.fingerprint, submission.adapter, submission.salt),
        )
        live.sequences = [self._sequence(live, state, hashes) for state in states]
        live.unfinished = len(states)
        # Choices that have outputs already (after a crash) are no forks of one prompt any more.
        if not any(state.tokens for state in states):
            live.leader, *live.forks = live.sequences
            # They go with the first output: a choice that has come further has had them sent.
            begun = any(state.tokens or state.finished for state in submission.resumed)
            live.logprobs_due = submission.params.prompt_logprobs is not None and not begun
            for sequence in live.forks:
                sequence.state, sequence.wait = State.FORKING, Wait.FORK
        return live

    def finish_done(self, live: Live) -> None:
        """End at once the choices that have nothing to compute."""
        for sequence in list(live.sequences):
            no_more = len(sequence.tokens) >= sequence.limit
            if no_more and not live.logprobs_due:
                self._books.ready.append(self._books.finish(sequence, FinishReason.LENGTH))

    def _sequence(self, live: Live, state: ChoiceState, hashes: list[bytes]) -> Sequence:
        submission = live.submission
        prompt_len = len(submission.prompt)
        limit = self._config.max_model_len
        if submission.params.max_tokens is not None:
            limit = min(limit, prompt_len + submission.params.max_tokens)
        self.next_rid += 1
        return Sequence(
            rid=self.next_rid - 1,
            live=live,
            choice=state.choice,
            tokens=[*submission.prompt, *state.tokens],
            prompt_len=prompt_len,
            limit=limit,
            tables=self._books.tables.empty(),
            hashes=list(hashes[: prompt_len // self._config.block_size]),
            cumulative_logprob=state.cumulative_logprob,
        )

    def _refuse_unfit(self, submission: Submission) -> None:
        length, config = len(submission.prompt), self._config
        if length == 0:
            raise Refused("the prompt has no tokens; give at least one", "empty_prompt", "prompt")
        if submission.request_id in self._books.live:
            raise Refused(
                f"a request with id {submission.request_id!r} is running", "duplicate_request_id"
            )
        if length + 1 > config.max_model_len:
            asked = submission.params.max_tokens
            raise Refused(
                f"the prompt has {length} tokens"
                + (f" and {asked} more are requested" if asked is not None else "")
                + f"; the context holds {config.max_model_len} in all, at least one of them "
                "for the answer. Shorten the prompt.",
                "context_length_exceeded",
                "prompt",
            )
        for pool in self._books.tables.pools:
            needed, size = self._needed_blocks(submission, pool.spec.span), config.block_size
            if needed > pool.total:
                raise Refused(
                    f"the request needs {needed * size} tokens of KV cache at the least (prompt of "
                    f"{length}, {submission.params.choices} choices); the whole cache has "
                    f"{pool.total * size}. Shorten the prompt, ask for fewer choices, or give the "
                    "server a larger cache.",
                    "request_too_large",
                    "prompt",
                )

    def _needed_blocks(self, submission: Submission, span: int) -> int:
        """Blocks to hold the prompt once, as far as it is seen (`span`), and each choice's first
        token after it."""
        length, params = len(submission.prompt), submission.params
        tables, size = self._books.tables, self._config.block_size
        stored = 0 if params.max_tokens is not None and params.max_tokens <= 1 else 1
        if not stored:
            return min(tables.blocks_for(length), span)
        of_each = tables.blocks_for(length + 1) - length // size
        return min(length // size + of_each, span) + (params.choices - 1) * of_each

    def _refuse_full(self, submission: Submission) -> None:
        books, config = self._books, self._config
        # Those that will begin with the next step do not wait.
        free = 0 if self._held_up() else max(0, config.max_running - len(books.running))
        requests = books.unstarted_requests + 1 - config.max_waiting_requests - free
        tokens = books.unstarted_tokens + len(submission.prompt) - config.max_waiting_tokens
        # A queue that is empty takes any request that fits the engine at all.
        if books.unstarted_requests == 0 or (requests <= 0 and tokens <= 0):
            return
        mean = books.unstarted_tokens / books.unstarted_requests
        begin = books.demand.ahead_of(submission.service_class)[0].starts_per_second
        if begin is None:
            wait = self._throughput.retry_after(max(tokens, requests * mean))
        else:
            wait = whole_seconds(max(requests, tokens / mean) / begin)
        raise Refused(
            f"{books.unstarted_requests} requests with {books.unstarted_tokens} prompt tokens are "
            f"waiting; the limits are {config.max_waiting_requests} and "
            f"{config.max_waiting_tokens}. Try again in {wait:.0f} s.",
            "queue_full",
            retry_after=wait,
        )

    def _held_up(self) -> bool:
        """Whether requests were left waiting by the latest step."""
        ahead = self._books.demand.ahead_of(ServiceClass.BATCH)
        return any(backlog.left for backlog in ahead)

    def _refuse_late(self, submission: Submission, now: float) -> None:
        """By the prediction. Only waiting is held against a request: what an engine at rest could
        not do in time is tried, for the prediction may be wrong and no later time is better."""
        bound = self._config.max_queue_delay
        if submission.service_class is not ServiceClass.REALTIME:
            bound = None  # its work can wait
        deadline = submission.deadline
        if bound is None and deadline is None:
            return
        left = None if deadline is None else deadline - now
        if left is not None and left <= 0:
            raise Refused(late_message(submission, False, 0), DEADLINE_EXCEEDED, "timeout")
        expected = predict(self._books, self._throughput, submission)
        waiting = (
            f"{self._books.unstarted_requests} requests are waiting, and this one would wait about "
            f"{expected.queue:.1f} s to begin"
        )
        if bound is not None and expected.queue > bound:
            wait = whole_seconds(expected.queue - bound)
            raise Refused(
                f"{waiting}; the limit is {bound:g} s (--max-queue-delay). Try again in "
                f"{wait:.0f} s.",
                "queue_delay",
                retry_after=wait,
            )
        if left is None or expected.queue <= 0:
            return
        # In an empty queue it would end in time, or at least begin its answer in time.
        in_time = expected.end if expected.end - expected.queue <= left else expected.first_token
        if in_time > left:
            wait = whole_seconds(min(expected.queue, in_time - left))
            raise Refused(
                f"{waiting}, have its first token after {expected.first_token:.1f} s and end after "
                f"{expected.end:.1f} s; its deadline is in {left:.1f} s. Try again in {wait:.0f} "
                "s, or give it more time.",
                "deadline_unreachable",
                "timeout",
                wait,
            )
