"""An input file, line by line: what it asks for, or what is wrong with it.

Owns: the form of a line, its checks, and the request that is made of one.
Does not know: the fields of the endpoints; a row with wrong ones fails by itself, when it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from octavo.batchq.objects import Limits, LineError

MAX_ERRORS = 100
"""Errors told of one file; the rest is counted."""
MAX_CUSTOM_ID = 512
BATCH_TIER = "batch"
"""`service_tier` of all rows: the one place where their class is set."""


class Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Row:
    """Where a row stands in the input file."""

    number: int
    custom_id: str
    start: int
    size: int


_line = msgspec.json.Decoder(Line)


def read_rows(path: Path, endpoint: str, limits: Limits) -> tuple[list[Row], list[LineError]]:
    """The rows of a file, or (not and) what is wrong with it. Empty lines are skipped."""
    rows: list[Row] = []
    errors: list[LineError] = []
    seen: dict[str, int] = {}
    for number, start, data in _lines(path, limits.max_row_bytes):
        if not data.strip():
            continue
        if len(rows) >= limits.max_rows:
            message = f"the file has more than {limits.max_rows} rows (--batch-max-rows)"
            return [], [LineError("too_many_rows", message, None, number)]
        found = _check(data, endpoint, seen, limits)
        if isinstance(found, LineError):
            found.line = number
            errors.append(found)
            if len(errors) >= MAX_ERRORS:
                break
            continue
        seen[found] = number
        rows.append(Row(len(rows), found, start, len(data)))
    if errors:
        return [], errors
    if not rows:
        return [], [LineError("empty_file", "the file has no rows")]
    return rows, []


def _lines(path: Path, limit: int) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset, content); of a longer line only as much as shows that it is."""
    start = 0
    with path.open("rb") as file:
        number = 0
        while data := file.readline(limit + 2):
            number += 1
            yield number, start, data
            start += len(data)
            while data and not data.endswith(b"\n") and (data := file.readline(1 << 20)):
                start += len(data)


def _check(data: bytes, endpoint: str, seen: dict[str, int], limits: Limits) -> str | LineError:
    """The custom_id of a good line."""
    if len(data.rstrip(b"\r\n")) > limits.max_row_bytes:
        message = f"the line has more than {limits.max_row_bytes} bytes (--max-body-size)"
        return LineError("line_too_long", message)
    try:
        line = _line.decode(data)
    except msgspec.ValidationError as error:
        return LineError("invalid_request_line", f"a field is missing or wrong: {error}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return LineError("invalid_json_line", "the line is not a JSON object")
    if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID or "\0" in line.custom_id:
        message = f"custom_id must have 1 to {MAX_CUSTOM_ID} characters, and no NUL"
        return LineError("invalid_custom_id", message, "custom_id")
    if line.custom_id in seen:
        message = f"custom_id {line.custom_id!r:.80} is that of line {seen[line.custom_id]} too"
        return LineError("duplicate_custom_id", message, "custom_id")
    if line.method != "POST":
        message = f"method is {line.method!r:.20}; it must be 'POST'"
        return LineError("invalid_method", message, "method")
    if line.url != endpoint:
        message = f"url is {line.url!r:.80}; it must be the batch's endpoint, {endpoint!r}"
        return LineError("mismatched_endpoint", message, "url")
    if bytes(line.body.get("stream", msgspec.Raw(b"null"))) not in (b"false", b"null"):
        return LineError("invalid_stream", "rows of a batch cannot be streamed", "body.stream")
    return line.custom_id


def request_body(batch_id: str, number: int, data: bytes) -> bytes:
    """The body that is run for a line: in the batch class, and with a seed that is the same however
    often the row is begun."""
    body: dict[str, Any] = dict(_line.decode(data).body)
    if bytes(body.get("seed", msgspec.Raw(b"null"))) == b"null":
        body["seed"] = row_hash(batch_id, number) >> 1
    body["service_tier"] = BATCH_TIER
    return msgspec.json.encode(body)


def row_hash(batch_id: str, number: int) -> int:
    """64 bits that belong to a row of a batch."""
    digest = hashlib.blake2b(f"{batch_id}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)
