"""The scheduler's record of one choice of a request while it lives.

Owns: `Sequence` (one choice), `Live` (the request that its choices belong to), their states.
Does not know: how states change (lifecycle) or which row comes next (planner).

Where the tokens of a sequence stand, on a line of positions:

    0 ........ computed ........ computed + in_flight ........ known
    KV committed   rows of steps         to be computed        tokens that exist, those
                   not yet collected                            sampled in flight included

A step lets `computed` catch up with `known`; there is no other difference between prefill, chunk
and decode.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from octavo.core.plan import TokenLogprob
from octavo.core.request import ServiceClass, Submission
from octavo.core.stats import Cause
from octavo.core.tables import Table

Key = tuple[float, ...]
"""Sorts sequences in order of service."""


class State(enum.Enum):
    WAITING = "waiting"
    """In the queue: holds nothing."""
    PARKED = "parked"
    """Waits for another sequence that computes its next block."""
    LOADING = "loading"
    """Waits for blocks from a tier."""
    FORKING = "forking"
    """Waits for its request's first choice to compute the prompt."""
    RUNNING = "running"
    FINISHED = "finished"


class Wait(enum.Enum):
    """Why a sequence that is not running waits."""

    NONE = "none"
    QUEUE = "queue"
    ROWS = "rows"
    MEMORY = "memory"
    PREFIX = "prefix"
    TIER = "tier"
    FORK = "fork"
    ALONE = "alone"


@dataclass(slots=True, eq=False)
class Live:
    """A request with unfinished choices. `leader` computes the prompt for those in `forks`."""

    submission: Submission
    root: bytes
    """Start of its chain hashes."""
    sequences: list[Sequence] = field(default_factory=list)
    leader: Sequence | None = None
    forks: list[Sequence] = field(default_factory=list)
    unfinished: int = 0
    started: float | None = None
    """When its first row was planned."""
    tag: float = 0.0
    """Its place in the order between tenants."""
    charged: int = 0
    """Tokens that its tenant was charged when it came."""
    cached_tokens: int | None = None
    logprobs_due: bool = False
    """Prompt logprobs are wanted and were not given yet."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    batch: bool = field(init=False)
    """Of the batch class: asked for several times a row."""

    def __post_init__(self) -> None:
        self.batch = self.submission.service_class == ServiceClass.BATCH


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice. `tokens` are the prompt and the outputs so far; `limit` is the length at which
    it ends (max_tokens or the context's end). `tables` hold its blocks, a list per KV group."""

    rid: int
    live: Live
    choice: int
    tokens: list[int]
    prompt_len: int
    limit: int
    tables: Table
    state: State = State.WAITING
    wait: Wait = Wait.QUEUE
    computed: int = 0
    in_flight: int = 0
    """Tokens in rows of steps that are not collected yet."""
    rows_in_flight: int = 0
    pending: int = 0
    """Samples in flight: tokens that exist but are not known here yet."""
    write_from: int = 0
    """Positions below it are in shared blocks already: computed again, but not written."""
    scored: int = 0
    """Prompt logprobs are asked for up to this position."""
    hashes: list[bytes] = field(default_factory=list)
    published: int = 0
    """Leading blocks that are findable by hash."""
    introduced: bool = False
    """The executor knows its rid."""
    yields: bool = False
    """Will be preempted as soon as its rows in flight are collected."""
    yields_to: Cause = Cause.BLOCKS
    """Why it will."""
    lent: tuple[int, int] | None = None
    """The best standing among those that wait for its blocks."""
    waiters: dict[int, Sequence] = field(default_factory=dict)
    owner: Sequence | None = None
    """Whom it waits for, while parked."""
    awaited: bytes | None = None
    """The block that it waits for, while parked."""
    fetched: bool = False
    """Blocks were asked of a tier since it last ran."""
    ticket: int = 0
    """Its place in the queue, 0 for none."""
    planned_step: int = -1
    preemptions: int = 0
    squeezed: int = 0
    """How many of its preemptions were for want of blocks: its length was guessed too short."""
    sheltered: bool = False
    """A batch row that its class was owed: realtime work does not push it out."""
    cumulative_logprob: float = 0.0
    reclaim: str = ""
    """Why its blocks go back to the pool, once it has ended."""
    reported: bool = False
    """Its first output was given."""

    @property
    def alone(self) -> bool:
        return self.live.submission.alone

    @property
    def known(self) -> int:
        return len(self.tokens) + self.pending

    @property
    def outputs(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def start(self) -> int:
        """The position at which its next row begins."""
        return self.computed + self.in_flight

    @property
    def todo(self) -> int:
        """Tokens that could be computed now; 0 while its last token is in flight."""
        known = len(self.tokens) + self.pending
        if self.pending and known >= self.limit:
            return 0
        return known - self.computed - self.in_flight

    @property
    def samples(self) -> bool:
        """Whether it generates at all (max_tokens 0 does not)."""
        return self.limit > self.prompt_len

    @property
    def scores_prompt(self) -> bool:
        """Whether it still has prompt logprobs to collect: then it neither waits nor hits."""
        live = self.live
        return (
            live.logprobs_due
            and live.leader is self
            and len(live.prompt_logprobs) < self.prompt_len - 1
        )

    @property
    def batch(self) -> bool:
        """Whether it is of the batch class."""
        return self.live.batch

    @property
    def standing(self) -> tuple[int, int]:
        """(rank of the class, priority): its own, or the better one of those that wait for it.
        Lower goes first."""
        own = (int(self.batch), self.live.submission.priority)
        return own if self.lent is None else min(own, self.lent)

    @property
    def rank(self) -> int:
        """0 where it goes with realtime work, 1 with batch work."""
        return int(self.live.batch) if self.lent is None else self.standing[0]

    @property
    def priority(self) -> int:
        return self.standing[1]
