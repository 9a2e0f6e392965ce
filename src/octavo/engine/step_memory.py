"""Memory that the engine writes before each step and the client reads after a crash.

Owns: an anonymous memory file with two parts: the request ids of the steps in flight (the suspects
of a crash) and the flight recorder's ring.
Does not know: what makes a suspect guilty (poison) or what a ring's records mean (recorder).

    | bytes of ids | ids, NUL between them ... | ring of records ... |
      8 bytes        ID_BYTES                    RING_BYTES

The memory file has no name: nothing is left behind, however the two processes end. The length is
written last and cleared first, so that a half-written list reads as an empty one.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence

ID_BYTES = 1 << 20
RING_BYTES = 1 << 15
MAX_REQUEST_ID = 256
"""Bytes (UTF-8) of a request id."""

_LENGTH = struct.Struct("<Q")
_SIZE = _LENGTH.size + ID_BYTES + RING_BYTES


class StepMemory:
    """Made by the client (`create`), opened by the engine from the inherited descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _SIZE)
        self._view = memoryview(self._map)
        self.ring = self._view[_LENGTH.size + ID_BYTES :]

    @classmethod
    def create(cls) -> StepMemory:
        fd = os.memfd_create("octavo-step", os.MFD_CLOEXEC)
        os.ftruncate(fd, _SIZE)
        return cls(fd)

    def write_ids(self, request_ids: Sequence[str]) -> None:
        """The requests that have rows in a step about to begin, or in flight. Ids beyond the room
        are left out: they count as innocent."""
        _LENGTH.pack_into(self._view, 0, 0)
        if not request_ids:
            return
        data = "\0".join(request_ids).encode()
        if len(data) > ID_BYTES:
            data = data[: data.rfind(b"\0", 0, ID_BYTES)]
        self._view[_LENGTH.size : _LENGTH.size + len(data)] = data
        _LENGTH.pack_into(self._view, 0, len(data))

    def read_ids(self) -> list[str]:
        """The ids last written; empty where the engine died while writing, or between steps."""
        (size,) = _LENGTH.unpack_from(self._view, 0)
        if not 0 < size <= ID_BYTES:
            return []
        data = bytes(self._view[_LENGTH.size : _LENGTH.size + size])
        return data.decode(errors="replace").split("\0")

    def close(self) -> None:
        self.ring.release()
        self._view.release()
        self._map.close()
        os.close(self.fd)
