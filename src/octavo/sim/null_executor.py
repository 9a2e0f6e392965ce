"""An executor that computes nothing: tokens come from a function of (seed, choice, position).

Owns: the executor's side of the seam, kept to the letter (rids, PENDING, order of collection).
Does not know: models. It drives scheduler tests, the simulator and the load tools.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.core.params import SamplingParams
from octavo.core.plan import (
    PENDING,
    FinishedLoad,
    Load,
    Row,
    RowResult,
    StepPlan,
    StepResult,
    TokenLogprob,
    Want,
)

TokenSource = Callable[[int, int, int], int]
"""(seed, choice, position of the token) -> token id."""

_MASK = 2**64 - 1


def hashed_tokens(vocab_size: int) -> TokenSource:
    """Tokens spread evenly over the vocabulary (splitmix64 of seed, choice and position)."""

    def source(seed: int, choice: int, position: int) -> int:
        z = (seed * 0x9E3779B97F4A7C15 + choice * 0xD1B54A32D192ED03 + position) & _MASK
        z = (z + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % vocab_size

    return source


class SeamError(RuntimeError):
    """A plan breaks the rules of the seam."""


@dataclass(slots=True)
class _Sequence:
    params: SamplingParams
    seed: int
    choice: int
    prompt_len: int
    tokens: list[int]


class NullExecutor:
    """`max_in_flight` 1 is synchronous; 2 lets a step be submitted before the last is collected.

    `fail` names the rows that fail: it returns the error, or None. A plan that breaks the rules of
    the seam raises SeamError.
    """

    def __init__(
        self,
        source: TokenSource | None = None,
        max_in_flight: int = 1,
        fail: Callable[[StepPlan, Row], str | None] | None = None,
    ) -> None:
        self._source = source or hashed_tokens(32_000)
        self._max_in_flight = max_in_flight
        self._fail = fail
        self._sequences: dict[int, _Sequence] = {}
        self._results: deque[tuple[int, StepResult]] = deque()

    @property
    def known(self) -> int:
        """Sequences that were introduced and not ended."""
        return len(self._sequences)

    def submit(self, plan: StepPlan) -> int:
        """Begin a step; the handle is its number."""
        if len(self._results) >= self._max_in_flight:
            raise SeamError(f"more than {self._max_in_flight} steps in flight")
        if plan.empty:
            raise SeamError("an empty plan was submitted")
        for rid in plan.ended:
            if self._sequences.pop(rid, None) is None:
                raise SeamError(f"sequence {rid} ended and was never admitted")
        for new in plan.admitted:
            if new.rid in self._sequences:
                raise SeamError(f"sequence {new.rid} was admitted twice")
            self._sequences[new.rid] = _Sequence(
                new.params, new.seed, new.choice, new.prompt_len, list(new.history)
            )
        loads = [FinishedLoad(one.id, True) for one in plan.transfers if isinstance(one, Load)]
        result = StepResult(rows=[], finished_transfers=loads)
        for row in plan.rows:
            error = self._fail(plan, row) if self._fail is not None else None
            if error is not None:
                result.errors[row.rid] = error
            result.rows.append(self._compute(row))
        self._results.append((plan.step, result))
        return plan.step

    def collect(self, handle: int) -> StepResult:
        """The result of the oldest step in flight."""
        if not self._results or self._results[0][0] != handle:
            raise SeamError(f"step {handle} is not the oldest one in flight")
        return self._results.popleft()[1]

    def _compute(self, row: Row) -> RowResult:
        sequence = self._sequences.get(row.rid)
        if sequence is None:
            raise SeamError(f"a row of sequence {row.rid}, which was never admitted")
        end = row.start + len(row.tokens)
        mine = sequence.tokens[row.start : end]
        told = [
            own if token == PENDING else token for own, token in zip(mine, row.tokens, strict=False)
        ]
        if len(mine) != len(row.tokens) or told != mine:
            raise SeamError(f"the tokens of sequence {row.rid} differ from those it has")
        return self._answer(row, sequence, end)

    def _answer(self, row: Row, sequence: _Sequence, end: int) -> RowResult:
        answer = RowResult()
        if Want.PROMPT_LOGPROBS in row.want:
            known = [*row.tokens, *([] if row.next_token is None else [row.next_token])]
            answer.prompt_logprobs = [
                self.made_up(token, row.start + row.logits_from + 1 + i)
                for i, token in enumerate(known[row.logits_from + 1 :])
            ]
        if Want.SAMPLE in row.want:
            token = self._source(sequence.seed, sequence.choice, end)
            if row.mask is not None:
                token = _allowed(row.mask, token)
            sequence.tokens.append(token)
            answer.tokens = [token]
            if sequence.params.wants_logprob:
                answer.logprobs = [self.made_up(token, end)]
        if Want.POOL in row.want:
            answer.pooled = [float(sum(sequence.tokens[:end])), float(end)]
        return answer

    @staticmethod
    def made_up(token: int, position: int) -> TokenLogprob:
        """A logprob that depends on the token and its position alone."""
        return TokenLogprob(token, -1.0 - (token + position) % 8, 1, [])


def _allowed(mask: bytes, token: int) -> int:
    """The first token from `token` on, round the vocabulary, whose bit in the mask is set."""
    bits = 8 * len(mask)
    for step in range(bits):
        candidate = (token + step) % bits
        if mask[candidate // 8] >> (candidate % 8) & 1:
            return candidate
    raise SeamError("a mask allows no token")
