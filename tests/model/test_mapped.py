"""Mapped files: views of their bytes, and pages that are given back."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.model.mapped import MappedFiles

PAGES = 64


def resident() -> int:
    """Bytes of this process's memory that are pages of files."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if "RssFile" in line)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(0).bytes(PAGES * mmap.PAGESIZE))
    return path


def test_views_are_the_bytes_and_cannot_be_written(file: Path) -> None:
    files, data = MappedFiles(), file.read_bytes()
    view = files.view(file, 100, 5000)
    assert view.tobytes() == data[100:5100]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError):
        files.view(file, 100, len(data))


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
def test_pages_that_are_given_back_do_not_count_and_can_be_read_again(file: Path) -> None:
    files, data = MappedFiles(), file.read_bytes()
    view = files.view(file, 0, len(data))
    assert int(view.sum()) == sum(data)
    read = resident()
    files.forget(file, 10, len(data) - 20)
    assert read - resident() >= PAGES // 2 * mmap.PAGESIZE
    assert view.tobytes() == data


@pytest.mark.parametrize(("offset", "size"), [(0, 10), (4000, 4000), (5, 0)])
def test_less_than_a_page_is_left_alone(file: Path, offset: int, size: int) -> None:
    files = MappedFiles()
    files.forget(file, offset, size)  # of a file that is not mapped
    view = files.view(file, 0, 8192)
    files.forget(file, offset, size)
    assert view.tobytes() == file.read_bytes()[:8192]
