"""The disk tier by itself: what was stored is read back or missed, whatever befalls the files."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.tiers import disk
from octavo.tiers.disk import DiskTier
from octavo.tiers.segment import RECORD_BYTES

BLOCK = 1000
FACTS = {"fingerprint": "f", "block_size": 16}
MIB = 1024**2


def content(index: int) -> bytes:
    return index.to_bytes(16, "big")


def data(index: int, size: int = BLOCK) -> bytes:
    return bytes([index % 251]) * size


def tier(path: Path, size: int = MIB, **facts: object) -> DiskTier:
    return DiskTier(path, size, {**FACTS, **facts}, BLOCK)


def get(one: DiskTier, *keys: tuple[int, bytes]) -> list[bytes | None]:
    """Loads blocks and waits for all of them."""
    for number, (group, name) in enumerate(keys):
        one.load(number, group, name)
    found: dict[int, bytes | None] = {}
    while len(found) < len(keys):
        one.wait(5.0)
        arrived = dict(one.arrived())
        assert not found.keys() & arrived.keys(), "a block arrives once"
        found |= arrived
    return [found[number] for number in range(len(keys))]


def put(one: DiskTier, *indices: int, group: int = 0, size: int = BLOCK) -> None:
    """Stores blocks and waits until they are written, or the tier is off."""
    for index in indices:
        one.store(group, content(index), data(index, size))
    with one._changed:
        assert one._changed.wait_for(lambda: not one._queued, 10.0)


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*/*.kv"))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[DiskTier]:
    one = tier(tmp_path)
    yield one
    one.close()


def test_what_is_stored_is_read_back_by_group(opened: DiskTier) -> None:
    put(opened, 1, 2)
    put(opened, 1, group=1, size=500)
    assert opened.contains(0, content(1)) and not opened.contains(1, content(2))
    keys = [(0, content(1)), (1, content(1)), (0, content(3)), (0, content(2))]
    assert get(opened, *keys) == [data(1), data(1, 500), None, data(2)]
    assert (opened.stats.stored, opened.stats.errors) == (3, 0)


def test_a_restart_finds_what_was_written(tmp_path: Path) -> None:
    for start in range(3):
        one = tier(tmp_path)
        assert len(one) == start * 10
        put(one, *range(start * 10, start * 10 + 10))
        one.close()
    one = tier(tmp_path)
    assert get(one, *((0, content(i)) for i in range(30))) == [data(i) for i in range(30)]
    assert one.stats.errors == 0
    assert one.stats.bytes == sum(path.stat().st_size for path in segments(tmp_path))
    one.close()


def test_what_was_queued_is_written_before_the_end(tmp_path: Path) -> None:
    one = tier(tmp_path)
    for index in range(50):
        one.store(0, content(index), data(index))
    one.close(flush=10.0)
    again = tier(tmp_path)
    assert len(again) == 50
    again.close()


@pytest.mark.parametrize("change", [{"fingerprint": "g"}, {"block_size": 32}, {"dtype": "int8"}])
def test_blocks_of_another_model_or_layout_are_not_found(
    tmp_path: Path, change: dict[str, object]
) -> None:
    one = tier(tmp_path)
    put(one, 1)
    one.close()
    other = tier(tmp_path, **change)
    assert len(other) == 0
    assert get(other, (0, content(1))) == [None]
    other.close()
    back = tier(tmp_path)
    assert get(back, (0, content(1))) == [data(1)]
    back.close()


def test_a_foreign_file_in_the_directory_is_counted_and_not_used(tmp_path: Path) -> None:
    one, other = tier(tmp_path / "a"), tier(tmp_path / "b", fingerprint="g")
    put(one, 1)
    put(other, 2)
    one.close()
    other.close()
    shutil.copy(segments(tmp_path / "b")[0], segments(tmp_path / "a")[0].parent / "00000009.kv")
    again = tier(tmp_path / "a")
    assert (len(again), again.stats.errors) == (1, 1)
    again.close()


@pytest.mark.parametrize("where", ["payload", "digest", "name"])
def test_a_flipped_bit_is_a_miss_and_an_error(tmp_path: Path, where: str) -> None:
    one = tier(tmp_path)
    put(one, 1, 2)
    (path,) = segments(tmp_path)
    at = path.stat().st_size - {"payload": 10, "digest": BLOCK + 5, "name": BLOCK + 22}[where]
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 16]))
    assert get(one, (0, content(1)), (0, content(2))) == [data(1), None]
    assert one.stats.errors == 1
    assert not one.contains(0, content(2)), "it is not asked for again"
    one.close()
    again = tier(tmp_path)
    assert get(again, (0, content(1)), (0, content(2))) == [data(1), None]
    again.close()


@pytest.mark.parametrize("keep", [0, 7, 60, 300, 1300, 2200])
def test_a_file_cut_off_anywhere_gives_what_is_whole(tmp_path: Path, keep: int) -> None:
    one = tier(tmp_path)
    put(one, 1, 2, 3)
    one.close()
    (path,) = segments(tmp_path)
    os.truncate(path, keep)
    again = tier(tmp_path)
    found = get(again, *((0, content(i)) for i in (1, 2, 3)))
    whole = sum(one is not None for one in found)
    assert found == [data(i) if i <= whole else None for i in (1, 2, 3)]
    assert whole == max(0, (keep - 108) // (BLOCK + RECORD_BYTES)) or keep > 1000
    assert again.stats.errors == 1
    put(again, 2, 4)
    assert get(again, (0, content(4))) == [data(4)]
    again.close()


def test_a_file_cut_off_while_it_is_used_is_a_miss(opened: DiskTier, tmp_path: Path) -> None:
    put(opened, 1, 2)
    os.truncate(segments(tmp_path)[0], 700)
    assert get(opened, (0, content(1)), (0, content(2))) == [None, None]
    assert opened.stats.errors == 2 and opened.active


def test_the_bound_holds_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    size = 100 * BLOCK
    one = tier(tmp_path, size)
    put(one, 0)
    for index in range(1, 400):
        put(one, index)
        if index % 5 == 0:
            with one._lock:
                for segment in one._shelf._segments.values():
                    segment.used -= 10
            get(one, (0, content(0)))
        assert sum(path.stat().st_size for path in segments(tmp_path)) <= size
    assert one.contains(0, content(0)) and one.contains(0, content(399))
    assert not one.contains(0, content(50))
    assert 50 < len(one) < 100
    assert get(one, (0, content(0)), (0, content(50))) == [data(0), None]
    one.close()


def test_blocks_of_other_models_make_room(tmp_path: Path) -> None:
    old = tier(tmp_path, 100 * BLOCK, fingerprint="old")
    put(old, *range(60))
    old.close()
    one = tier(tmp_path, 100 * BLOCK)
    put(one, *range(90))
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= 100 * BLOCK
    assert get(one, (0, content(89))) == [data(89)]
    one.close()


def test_a_bound_that_holds_no_block_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kv_disk_size is 1500 bytes"):
        tier(tmp_path, 1500)


def test_two_engines_do_not_share_a_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = tier(tmp_path)
    two = tier(tmp_path)
    assert one.active and not two.active
    assert "another engine" in caplog.text
    put(one, 1)
    two.store(0, content(1), data(1))
    assert get(two, (0, content(1))) == [None]
    two.close()
    one.close()


def test_a_full_disk_turns_it_off_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit on a file's size stands for the disk's."""
    one = tier(tmp_path)
    put(one, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        put(one, *range(2, 10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not one.active
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "is off" in caplog.text
    assert get(one, (0, content(1))) == [None]
    one.store(0, content(3), data(3))
    one.close()
    again = tier(tmp_path)
    assert get(again, (0, content(1))) == [data(1)], "what was written before is sound"
    again.close()


def test_a_directory_that_is_removed_turns_it_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = tier(tmp_path / "kv")
    put(one, 1)
    shutil.rmtree(tmp_path / "kv")
    put(one, 2)
    assert not one.active
    assert "was removed" in caplog.text and len(caplog.records) == 1
    one.close()


def test_a_place_that_cannot_be_used_turns_it_off_at_once(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file")
    one = tier(tmp_path / "kv")
    assert not one.active
    assert get(one, (0, content(1))) == [None]
    one.close()


def test_a_read_that_hangs_turns_it_off(opened: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    put(opened, 1)
    release = threading.Event()
    monkeypatch.setattr(disk, "read", lambda *_: (release.wait(20), data(1))[1])
    opened.load(0, 0, content(1))
    assert opened.arrived() == []
    monkeypatch.setattr(disk, "STUCK", -1.0)
    assert opened.arrived() == [(0, None)]
    assert not opened.active
    release.set()
    opened.wait(0.0)
    assert opened.arrived() == [], "what comes too late does not come"


def test_clear_forgets_all(opened: DiskTier, tmp_path: Path) -> None:
    put(opened, 1, 2)
    opened.clear()
    assert len(opened) == 0 and not segments(tmp_path)
    assert get(opened, (0, content(1))) == [None]
    put(opened, 3)
    assert get(opened, (0, content(3))) == [data(3)]


def test_the_writer_is_not_waited_for(opened: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is behind means no room; nothing blocks."""
    opened._block_bytes = disk.BUFFER // 4
    with opened._files:
        assert opened.room() == 4
        for index in range(4):
            opened.store(0, content(index), b"x" * (disk.BUFFER // 4))
        assert opened.room() == 0
    put(opened)
    assert opened.room() == 4


def test_no_file_stays_open_but_the_one_that_is_written(tmp_path: Path) -> None:
    for start in range(8):
        one = tier(tmp_path)
        put(one, start)
        one.close()
    one = tier(tmp_path)
    put(one, 99)
    get(one, *((0, content(start)) for start in range(8)))
    held = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert sum(path.suffix == ".kv" for path in held) == 1
    one.close()


def test_what_another_engine_uses_does_not_make_room(tmp_path: Path) -> None:
    size = 30 * BLOCK
    other = tier(tmp_path, size, fingerprint="other")
    put(other, *range(20))
    kept = sum(path.stat().st_size for path in segments(tmp_path))
    one = tier(tmp_path, size)
    put(one, *range(20))
    assert one.active and one.stats.errors == 0
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= size
    assert get(other, (0, content(0))) == [data(0)]
    assert kept <= size
    one.close()
    other.close()
