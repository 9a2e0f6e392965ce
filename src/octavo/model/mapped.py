"""Files of weights, mapped into memory and let go again.

Owns: one map a file, and giving back the pages of what has been read.
Does not know: formats, tensors.

Pages of a map count as this process's memory until they are given back, although the system could
have them at any time: a load that kept them would seem to take the file's size besides the weights.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MappedFiles:
    """Reads nothing by itself. Maps live as long as arrays over them do."""

    def __init__(self) -> None:
        self._maps: dict[str, mmap.mmap] = {}

    def view(self, path: str | Path, offset: int, size: int) -> NDArray[np.uint8]:
        """`size` bytes from `offset` on; not to be written. Raises OSError, and ValueError where
        the file ends before that."""
        name = str(path)
        if name not in self._maps:
            with Path(name).open("rb") as file:
                self._maps[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found: NDArray[np.uint8] = np.frombuffer(self._maps[name], np.uint8, size, offset)
        return found

    def forget(self, path: str | Path, offset: int, size: int) -> None:
        """Gives back the pages that lie wholly in there; reading them again is allowed."""
        advice: Any = getattr(mmap, "MADV_DONTNEED", None)
        mapped = self._maps.get(str(path))
        if advice is None or mapped is None:
            return
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = (offset + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if whole > 0:
            mapped.madvise(advice, first, whole)
