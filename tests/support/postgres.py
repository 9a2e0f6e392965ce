"""A PostgreSQL server of our own, for tests: on a socket in a folder, gone afterwards.

Owns: finding the programs, a cluster, databases in it.
Does not know: what is kept there.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")


def _programs() -> Path | None:
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    for pattern in _PLACES:
        for folder in sorted(Path("/").glob(pattern.removeprefix("/")), reverse=True):
            if (folder / "initdb").exists():
                return folder
    return None


def missing() -> str | None:
    """Why there can be no server here."""
    if _programs() is None:
        return "PostgreSQL is not installed (initdb is not found)"
    if os.getuid() == 0 and not _user():
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    return None


def _user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class Postgres:
    def __enter__(self) -> Postgres:
        programs = _programs()
        assert programs is not None
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="octavo-pg-"))
        self._as: dict[str, Any] = {}
        user = _user()
        if os.getuid() == 0 and user is not None:
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._data = self._folder / "data"
        self._run("initdb", "-D", self._data, "-U", "octavo", "-A", "trust", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories='{self._folder}'"
        log = self._folder / "log"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", log, "-o", options, "start")
        self._count = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(self._folder)

    def database(self) -> str:
        """The URL of a new one."""
        self._count += 1
        name = f"test{self._count}"
        self._run("createdb", "-h", self._folder, "-U", "octavo", name)
        return f"postgresql://octavo@/{name}?host={self._folder}"

    def _run(self, program: str, *arguments: object) -> None:
        subprocess.run(
            [self._programs / program, *map(str, arguments)], check=True, cwd=self._folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **self._as,
        )  # fmt: skip
