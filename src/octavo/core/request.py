"""What enters the scheduler and what leaves it.

Owns: `Submission` (a client's request), `Output`, `Refused`.
Does not know: text, sockets, what is kept per sequence (sequence), or how rows are chosen.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from octavo.core.params import SamplingParams
from octavo.core.plan import TokenLogprob

DEADLINE_EXCEEDED = "deadline_exceeded"
"""The code of a request that was not complete by its own deadline."""


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ServiceClass(enum.StrEnum):
    """Which work comes first. Realtime goes before batch in everything and may push it out; batch
    has what is left and a small share for certain."""

    REALTIME = "realtime"
    BATCH = "batch"


@dataclass(slots=True)
class ChoiceState:
    """How far one choice had come, for resumption after an engine crash."""

    choice: int
    tokens: list[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finished: bool = False


@dataclass(slots=True)
class Submission:
    """A request as it enters the engine. `seed` is fixed here, once and for all.

    `resumed` is empty for a new request; after a crash it has one entry per choice. `priority`:
    lower goes first. `salt` separates the prefix caches of tenants that must not share.
    """

    request_id: str
    prompt: list[int]
    params: SamplingParams
    seed: int
    arrival: float = 0.0
    priority: int = 0
    service_class: ServiceClass = ServiceClass.REALTIME
    tenant: str = ""
    adapter: str | None = None
    salt: str = ""
    resumed: list[ChoiceState] = field(default_factory=list)
    alone: bool = False
    """Its rows share a step with no other request's (a suspect after crashes): at most one such
    request is active, and its steps alternate with the others'."""
    timeout: float | None = None
    """Seconds from arrival within which it has to be complete; past that it is failed."""

    @property
    def deadline(self) -> float | None:
        """On the clock that `arrival` was read from."""
        return None if self.timeout is None else self.arrival + self.timeout


@dataclass(slots=True)
class Output:
    """What one committed step (or an abort, refusal or stall) yields for one choice.

    `tokens` are new since the last output of this choice. After the output with `finish_reason`
    nothing follows for the choice. `stop_reason` is the token id that stopped it, where one did.
    `error` explains finish_reason "error". `cached_tokens` (prompt tokens served from the prefix
    cache) and `prompt_logprobs` come once, with the first output.
    """

    request_id: str
    choice: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    error_code: str | None = None
    cached_tokens: int | None = None
    preemptions: int = 0
    queue_time: float | None = None
    """Seconds from arrival to first row; comes once, with the first output."""


class Refused(Exception):
    """A submission that is not taken. `code` is stable for programs; `retry_after` in seconds is
    set where waiting helps (a full or slow queue)."""

    def __init__(
        self, message: str, code: str, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.retry_after = retry_after
