"""Contents of files, on disk: whole or not there at all.

Owns: the folder, names in it, fsync and the atomic rename, the sweep of what no record tells of.
Does not know: records (store) or what the bytes mean.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Blobs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a blob")
        return self._folder / name

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """`fill` writes the content; returns the size. After this the content outlives a crash of
        the machine; if it raises there is no trace of it."""
        target = self.path(name)
        partial = target.with_name(f"{name}.partial")
        try:
            with partial.open("wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(self._folder)
        return size

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def sweep(self, known: Iterable[str]) -> int:
        """Delete what is not `known`: left by a crash between a content and its record."""
        keep = set(known)
        gone = [path for path in self._folder.iterdir() if path.name not in keep]
        for path in gone:
            path.unlink(missing_ok=True)
        return len(gone)


def sync_folder(folder: Path) -> None:
    """Makes renames within `folder` durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_bounded(source: BinaryIO, target: BinaryIO, limit: int) -> int | None:
    """Bytes copied; None once there are more than `limit`."""
    copied = 0
    while data := source.read(CHUNK):
        copied += len(data)
        if copied > limit:
            return None
        target.write(data)
    return copied
