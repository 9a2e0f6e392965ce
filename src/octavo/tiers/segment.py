"""A segment: a file of blocks that is only appended to, and checked wherever it is read.

Owns: the format of the file, its checksums, and what counts as damaged.
Does not know: which segments there are, or threads (disk).

    segment   magic "OCTAVOKV" | version u32 | length u32 | JSON of that length | blake2b-128 of it
    record    magic u32 | group u32 | length u64 | chain hash 16 bytes | crc32 of these u32
              | blake2b-128 of chain hash, group and payload | payload

The JSON says whose blocks these are: fingerprint, block size, layout and type. A record's header
has a checksum of its own, so that the index can be rebuilt without reading payloads; the payload's
is checked when it is loaded. What follows a damaged header, or is cut off at the end, is not there.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

VERSION = 1
_MAGIC = b"OCTAVOKV"
_RECORD = 0x6B76626C
_HEAD = struct.Struct("<8sII")
_PART = struct.Struct("<IIQ16s")
_CRC = struct.Struct("<I")
_DIGEST = 16
RECORD_BYTES = _PART.size + _CRC.size + _DIGEST
"""What a record takes besides its payload."""


class Damaged(ValueError):
    """The file, or the record, is not what was written."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record's payload lies."""

    segment: int
    offset: int
    length: int


def header(facts: dict[str, Any]) -> bytes:
    """The beginning of a segment."""
    text = json.dumps({**facts, "version": VERSION}, sort_keys=True).encode()
    return _HEAD.pack(_MAGIC, VERSION, len(text)) + text + _digest(text)


def record(group: int, content: bytes, data: bytes) -> bytes:
    """What goes before a payload."""
    part = _PART.pack(_RECORD, group, len(data), content)
    return part + _CRC.pack(zlib.crc32(part)) + _payload_digest(group, content, data)


def create(path: Path, facts: dict[str, Any]) -> int:
    """A new segment; its descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, header(facts))
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd


def write_all(fd: int, *parts: bytes) -> None:
    """Append. Raises OSError; then the file ends where it ended before."""
    before = os.lseek(fd, 0, os.SEEK_END)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
    except OSError:
        os.ftruncate(fd, before)
        raise


def scan(fd: int, segment: int, facts: dict[str, Any]) -> Iterator[tuple[int, bytes, Place]]:
    """(group, chain hash, place) of all records. Raises Damaged where the file is foreign, or after
    the last sound record where not all of it is sound."""
    beginning = header(facts)
    if os.pread(fd, len(beginning), 0) != beginning:
        raise Damaged("it is of another model, layout or version, or its header is damaged")
    end, at = os.fstat(fd).st_size, len(beginning)
    while at < end:
        part = os.pread(fd, _PART.size + _CRC.size, at)
        if len(part) < _PART.size + _CRC.size:
            raise Damaged(f"it is cut off at byte {at}")
        magic, group, length, content = _PART.unpack_from(part)
        if magic != _RECORD or _CRC.unpack_from(part, _PART.size)[0] != zlib.crc32(part[:-4]):
            raise Damaged(f"the record at byte {at} is damaged")
        if at + RECORD_BYTES + length > end:
            raise Damaged(f"the record at byte {at} is cut off")
        yield group, content, Place(segment, at, length)
        at += RECORD_BYTES + length


def read(fd: int, place: Place, group: int, content: bytes) -> bytes:
    """The payload of a record. Raises Damaged unless it is the one that was written, OSError."""
    whole = os.pread(fd, RECORD_BYTES + place.length, place.offset)
    if len(whole) < RECORD_BYTES + place.length:
        raise Damaged("the record is cut off")
    data = whole[RECORD_BYTES:]
    if whole[:RECORD_BYTES] != record(group, content, data):
        raise Damaged("the record's checksum is wrong")
    return data


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST).digest()


def _payload_digest(group: int, content: bytes, data: bytes) -> bytes:
    digest = blake2b(content + group.to_bytes(4, "little"), digest_size=_DIGEST)
    digest.update(data)
    return digest.digest()
