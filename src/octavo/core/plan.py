"""The seam between scheduler and executor: one step's plan, its result, and the clock.

Owns: the plain data that crosses the seam.
Does not know: how rows are chosen (scheduler) or computed (model, ops).

Rules of the seam
- A row is `(rid, start, count)`: prefill, chunk and decode are the same thing. `rid` names one
  sequence (one choice of a request); it is an engine-wide integer that is never reused.
- A rid is introduced by `admitted` in the plan of its first row, and named in `ended` once: in the
  first plan after it finished, failed, was aborted or was preempted. A preempted sequence that
  resumes is admitted again, with the tokens so far in `history`. An executor keeps what it needs
  per rid (penalty counts, seed) between the two. `ended` is applied before `admitted`.
- `copies` are done before any write of the step, and all sources are read before any target is
  written.
- Stores of a plan are copied out before any other write of it (copies, loads, rows).
- Plans are submitted and collected in order; an asynchronous executor may have two in flight. A
  token sampled by a step not yet collected is PENDING in the next plan's row: the executor knows
  it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.core.params import SamplingParams

PENDING = -1
"""Stands for a token that the executor sampled in the previous step and has not returned yet."""


class Want(enum.IntFlag):
    """What a row is computed for, besides filling the KV cache."""

    NONE = 0
    SAMPLE = 1
    PROMPT_LOGPROBS = 2
    POOL = 4


@dataclass(slots=True)
class Row:
    """`tokens` of one sequence at absolute positions `start ..< start + len(tokens)`.

    `tables` holds, per KV group, block ids covering positions `0 ..< start + len(tokens)`.
    Keys and values of positions below `write_from` are in the cache already and are not written.
    Logits are wanted for the tokens from index `logits_from` on (`len(tokens)`: for none); SAMPLE
    uses the last one; PROMPT_LOGPROBS at position p tells of the known token at p + 1: the tokens
    inside the row, and `next_token` after its last one (None: there is none, e.g. it is sampled).
    """

    rid: int
    start: int
    tokens: list[int]
    tables: tuple[list[int], ...]
    write_from: int
    logits_from: int
    want: Want
    next_token: int | None = None
    adapter: str | None = None
    mask: bytes | None = None


@dataclass(slots=True)
class Admitted:
    """A sequence that begins (or resumes): `history` is its prompt and the outputs so far."""

    rid: int
    params: SamplingParams
    seed: int
    choice: int
    prompt_len: int
    history: list[int]


@dataclass(slots=True, frozen=True)
class Copy:
    """Copy block `source` to block `target` within KV group `group`."""

    group: int
    source: int
    target: int


@dataclass(slots=True, frozen=True)
class Store:
    """Copy a block's bytes to the tier under its chain hash."""

    group: int
    block: int
    content: bytes


@dataclass(slots=True, frozen=True)
class Load:
    """Fill `block` with what the tier has under `content`. Nobody reads or writes the block before
    `id` is among the finished transfers, which takes as many steps as it may."""

    id: int
    group: int
    block: int
    content: bytes


@dataclass(slots=True, frozen=True)
class FinishedLoad:
    """`ok`: the block is filled; otherwise its content is worthless."""

    id: int
    ok: bool


@dataclass(slots=True)
class StepPlan:
    step: int
    rows: list[Row] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    transfers: list[Load | Store] = field(default_factory=list)
    waits: bool = False
    """There is nothing to compute before a load has finished: the executor may wait for one, but
    not for long, because other work may come."""

    @property
    def empty(self) -> bool:
        """Nothing is to be done; such a plan is not submitted."""
        return not (self.rows or self.transfers or self.waits)


@dataclass(slots=True)
class TokenLogprob:
    """Raw logprob of `token` (before penalties and temperature), its rank (1 is the most likely)
    and the most likely alternatives, best first, as (token, logprob)."""

    token: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


@dataclass(slots=True)
class RowResult:
    """`tokens`: what was sampled (none, one or several). `logprobs`: one entry a token, if asked.
    `prompt_logprobs`: for the known tokens that the row's logits tell of, in order."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    pooled: list[float] | None = None


@dataclass(slots=True)
class StepResult:
    """`rows[i]` answers `plan.rows[i]`; a row that failed has an entry in `errors` by rid instead
    (its `rows[i]` is then ignored). `finished_transfers` names the loads that are done, of this
    step or of earlier ones; every load finishes once. Of stores nothing is told."""

    rows: list[RowResult]
    errors: dict[int, str] = field(default_factory=dict)
    finished_transfers: list[FinishedLoad] = field(default_factory=list)


class Executor(Protocol):
    """Runs plans: the real model, a null executor, a cost model."""

    def submit(self, plan: StepPlan) -> Any:
        """Begin a step; returns a handle for `collect`. Must not block on an earlier step's result
        if the executor is asynchronous."""
        ...

    def collect(self, handle: Any) -> StepResult:
        """Wait for the step and return its result."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds, monotonic or simulated."""
        ...


Tables = Sequence[list[int]]
