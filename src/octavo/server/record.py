"""What is noted about one HTTP request while it is served, and the log line made of it.

Owns: `Record`, text and JSON log formats, the access line.
Does not know: routes. Nothing of a request's content is ever noted here.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

access_log = logging.getLogger("octavo.access")

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CLIENT_CLOSED = 499
"""Status in the log of a request whose client went away before the answer began."""
_QUIET = frozenset({"/health", "/ready", "/metrics", "/stats"})
"""Polled routes: their lines are at debug level."""


@dataclass(slots=True)
class Record:
    """`arrival` is monotonic; times are seconds from it. `finish` has one reason a choice."""

    request_id: str
    arrival: float
    method: str = ""
    route: str = ""
    status: int = 0
    key_name: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft: float | None = None
    finish: list[str] = field(default_factory=list)
    error: str | None = None
    total: float = 0.0

    def fields(self) -> dict[str, Any]:
        """The parts of the access line, in order; what is not known is left out."""
        known: dict[str, Any] = {
            "id": self.request_id,
            "key": self.key_name,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "ttft": None if self.ttft is None else round(self.ttft, 4),
            "seconds": round(self.total, 4),
            "finish": self._finish(),
            "error": self.error,
        }
        return {name: value for name, value in known.items() if value is not None}

    def _finish(self) -> str | None:
        """ "stop", or "length:1,stop:3" where a request had several choices."""
        if len(self.finish) < 2:
            return self.finish[0] if self.finish else None
        return ",".join(f"{reason}:{n}" for reason, n in sorted(Counter(self.finish).items()))

    def log(self) -> None:
        level = logging.DEBUG if self.route in _QUIET else logging.INFO
        if access_log.isEnabledFor(level):
            fields = self.fields()
            text = " ".join(f"{name}={value}" for name, value in fields.items())
            access_log.log(level, "request %s", text, extra={"fields": fields})


def new_record(scope: Scope) -> Record:
    """The client's x-request-id is kept if it is short and plain, else one is made."""
    given = ""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
    request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
    return Record(request_id, time.monotonic(), method=scope["method"])


def record_of(scope: Scope) -> Record:
    """The record that the outermost middleware made."""
    record: Record = scope["state"]["record"]
    return record


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message and the fields of access lines."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        if fields is None:
            entry["message"] = record.getMessage()
        else:
            entry["message"] = "request"
            entry.update(fields)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logging(level: str, format: str) -> None:
    """Send the logs of octavo and uvicorn to stderr, as "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    if format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("octavo", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("octavo").setLevel(level.upper())
    # uvicorn tells of its start and end at info level; the banner and our own lines say it better.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
