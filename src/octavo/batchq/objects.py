"""Files and batches as OpenAI's API shows them, limits, and the one refusal.

Owns: field names and JSON forms, statuses, `Limits`, `Refusal`.
Does not know: where anything is kept (store) or how rows run (runner).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
WINDOW = "24h"
WINDOW_SECONDS = 24 * 3600
MIN_EXPIRY, MAX_EXPIRY = 3600, 30 * 24 * 3600
"""Bounds of `expires_after.seconds`, as OpenAI has them."""


class Status(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


LIVE = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)
"""A batch in one of these still has work to do."""


class Purpose(StrEnum):
    BATCH = "batch"
    OUTPUT = "batch_output"


class Refused(StrEnum):
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    CONFLICT = "conflict"
    QUOTA = "quota"


class Refusal(Exception):
    """What was asked cannot be done; `param` names the field."""

    def __init__(
        self, kind: Refused, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class Limits:
    """Quotas. `max_live` counts one key's batches, `max_row_bytes` one line of an input file."""

    max_rows: int = 50_000
    max_file_bytes: int = 200 * 1024**2
    max_live: int = 100
    max_row_bytes: int = 32 * 1024**2


class ExpiresAfter(msgspec.Struct):
    anchor: str
    seconds: int

    def check(self, name: str, anchor: str = "created_at") -> None:
        """Raises Refusal."""
        if self.anchor != anchor:
            raise Refusal(Refused.INVALID, f"{name}.anchor must be {anchor!r}", f"{name}.anchor")
        if not MIN_EXPIRY <= self.seconds <= MAX_EXPIRY:
            raise Refusal(
                Refused.INVALID,
                f"{name}.seconds is {self.seconds}; it must be from {MIN_EXPIRY} to {MAX_EXPIRY}",
                f"{name}.seconds",
            )


class FileObject(msgspec.Struct):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    status: str = "processed"
    object: str = "file"


class RequestCounts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class LineError(msgspec.Struct):
    """What is wrong with an input file; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineErrors(msgspec.Struct):
    data: list[LineError]
    object: str = "list"


class Batch(msgspec.Struct, kw_only=True):
    id: str
    endpoint: str
    input_file_id: str
    status: str
    created_at: int
    expires_at: int
    completion_window: str = WINDOW
    errors: LineErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    object: str = "batch"


class CreateBatch(msgspec.Struct):
    """The body that makes a batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None

    def check(self) -> None:
        """Raises Refusal for what can be said without looking at the file."""
        if self.endpoint not in ENDPOINTS:
            raise Refusal(
                Refused.INVALID,
                f"endpoint {self.endpoint!r:.80} is not supported; use one of "
                + ", ".join(ENDPOINTS),
                "endpoint",
            )
        if self.completion_window != WINDOW:
            raise Refusal(
                Refused.INVALID,
                f"completion_window is {self.completion_window!r:.40}; only {WINDOW!r} is offered",
                "completion_window",
            )
        check_metadata(self.metadata)
        if self.output_expires_after is not None:
            self.output_expires_after.check("output_expires_after")


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """OpenAI's bounds: 16 pairs, keys of 64 characters, values of 512. Raises Refusal."""
    for key, value in (metadata or {}).items():
        if len(metadata or {}) > 16 or len(key) > 64 or len(value) > 512:
            raise Refusal(
                Refused.INVALID,
                "metadata holds at most 16 pairs, with keys of up to 64 characters and values of "
                f"up to 512; {key!r:.70} does not fit",
                "metadata",
            )
