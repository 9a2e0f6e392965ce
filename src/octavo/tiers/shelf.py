"""The segment files of a directory: which there are, which is written, which goes next.

Owns: names, sizes, times of last use, the bound in bytes, the lock of a directory.
Does not know: threads: whoever calls holds a lock, `append` aside, which has one caller.

    DIRECTORY/2f7c.../lock          held by the engine that writes there
    DIRECTORY/2f7c.../00000001.kv   segments, oldest first; a new one is begun at every start
    DIRECTORY/91ab.../...           of another model, layout or version: only in the way

The bound is on the whole directory. When it is reached, the segment that was used least recently is
deleted as a whole, one of another model like any other unless an engine uses it now. The time of
last use is the file's modification time, set when a block is read from it, so that it outlives a
restart.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from octavo.tiers import Key
from octavo.tiers.segment import Damaged, Place, create, scan, write_all

log = logging.getLogger(__name__)

SEGMENT = 64 * 1024**2
"""Bytes of a segment, which is deleted at once: more if the bound holds over 256 of them, and an
eighth of the bound if that is less."""
HEADER = 4096
"""More bytes than a segment's header takes."""
TOUCH = 1.0
"""Seconds between two notes of a file's last use."""


@dataclass(slots=True)
class _Segment:
    """`fd` is -1 unless it is being written: readers open the file for themselves, so that it may
    be deleted under them and files do not stay open."""

    path: Path
    size: int
    used: float
    fd: int = -1


class Shelf:
    def __init__(self, root: Path, size: int, facts: dict[str, Any], record_bytes: int) -> None:
        name = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
        self.directory = root / name
        self.damaged = 0
        """Files that were not sound when they were opened."""
        self._root = root
        self._size = size
        self._segment_bytes = max(record_bytes, min(max(SEGMENT, size // 256), size // 8))
        self._facts = facts
        self._segments: dict[int, _Segment] = {}
        self._current: int | None = None
        self._last_name = 0
        self._next_id = 0
        self._lock_fd = -1

    @property
    def held(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments.values())

    def open(self) -> Iterator[tuple[Key, Place]]:
        """Take the directory and give all blocks in it. Raises OSError, also where another engine
        uses it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = _lock(self.directory)
        if lock is None:
            raise OSError("another engine uses it")
        self._lock_fd = lock
        for path in sorted(self._root.glob("*/*.kv")):
            number = self._add(path)
            if path.parent == self.directory:
                self._last_name = max(self._last_name, int(path.stem) if path.stem.isdigit() else 0)
                yield from self._scan(number)

    def _add(self, path: Path) -> int:
        found = path.stat()
        self._next_id += 1
        self._segments[self._next_id] = _Segment(path, found.st_size, found.st_mtime)
        return self._next_id

    def _scan(self, number: int) -> Iterator[tuple[Key, Place]]:
        segment = self._segments[number]
        try:
            fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for group, content, place in scan(fd, number, self._facts):
                    yield (group, content), place
            finally:
                os.close(fd)
        except (Damaged, OSError) as error:
            self.damaged += 1
            log.warning("%s: %s; what follows is not used", segment.path, error)

    # ---- writing --------------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Whether so many bytes more, and a segment's header, stay within the bound."""
        return self.held + size + HEADER <= self._size

    def make_room(self, size: int) -> set[int]:
        """Delete segments until so many bytes more fit, or none is left that may be deleted; the
        numbers of those that went. Raises OSError."""
        gone: set[int] = set()
        busy: set[int] = set()
        while not self.fits(size):
            oldest = min(
                (n for n in self._segments if n not in busy),
                key=lambda n: (n == self._current, self._segments[n].used),
                default=None,
            )
            if oldest is None:
                break
            if self._delete(oldest):
                gone.add(oldest)
            else:
                busy.add(oldest)
        return gone

    def append(self, head: bytes, data: bytes) -> Place:
        """Raises OSError."""
        size = len(head) + len(data)
        current = self._segments.get(self._current) if self._current is not None else None
        if current is None or (current.size + size > self._segment_bytes and current.size > HEADER):
            current = self._begin(current)
        if os.fstat(current.fd).st_nlink == 0:
            raise OSError(f"{current.path} was removed")
        assert self._current is not None
        place = Place(self._current, current.size, len(data))
        write_all(current.fd, head, data)
        current.size += size
        current.used = time.time()
        return place

    def _begin(self, before: _Segment | None) -> _Segment:
        if before is not None:
            _close(before)
        self._last_name += 1
        path = self.directory / f"{self._last_name:08}.kv"
        fd = create(path, self._facts)
        self._next_id += 1
        self._current = self._next_id
        segment = _Segment(path, os.fstat(fd).st_size, time.time(), fd)
        self._segments[self._current] = segment
        return segment

    def _delete(self, number: int) -> bool:
        """False where another engine uses its directory."""
        segment = self._segments[number]
        foreign = segment.path.parent != self.directory
        if foreign and segment.path.exists():
            lock = _lock(segment.path.parent)
            if lock is None:
                return False
            os.close(lock)
        segment.path.unlink(missing_ok=True)
        del self._segments[number]
        if number == self._current:
            self._current = None
        _close(segment)
        return True

    def forget(self) -> None:
        """Delete this model's segments."""
        for number, segment in list(self._segments.items()):
            if segment.path.parent == self.directory:
                self._delete(number)

    # ---- reading --------------------------------------------------------------------------------

    def take(self, place: Place) -> int | None:
        """The file to read a block from, to be closed by the caller; None where it is gone. Raises
        OSError."""
        segment = self._segments.get(place.segment)
        if segment is None:
            return None
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        now = time.time()
        if now - segment.used > TOUCH:
            segment.used = now
            try:
                os.utime(fd)
            except OSError as error:
                log.debug("%s: the time of use was not noted: %s", segment.path, error)
        return fd

    def close(self) -> None:
        for segment in self._segments.values():
            _close(segment)
        self._segments.clear()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _close(segment: _Segment) -> None:
    if segment.fd >= 0:
        os.close(segment.fd)
        segment.fd = -1


def _lock(directory: Path) -> int | None:
    """The directory's lock, held until the descriptor is closed; None where another has it."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
