"""Facts of the machine and of the container: processors, memory, open files.

Owns: the affinity mask, CPU quotas and memory limits of cgroups (v1 and v2, nested), free memory,
the choice of a thread count, the limit of open files.
Does not know: models, options or plans. All roots are arguments, so that tests bring their own.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from octavo import numa

_UNLIMITED = 2**60
"""cgroup v1 writes "no limit" as a number near 2**63; no real limit is this large."""

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
NUM_THREADS = "OMP_NUM_THREADS"
BLAS_POOLS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables of numpy's BLAS."""
POOLS = (NUM_THREADS, "RAYON_NUM_THREADS")
"""The variables of OpenMP and of the tokenizers' library."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use. `affinity` in processors, `cpu_quota` in processors (None: no
    quota), `cgroup_memory` and `available_memory` in bytes (None: no limit, or not known)."""

    affinity: int
    cpu_quota: float | None
    cgroup_memory: int | None
    available_memory: int | None
    numa_nodes: tuple[int, ...] = ()
    """Processors of the affinity mask on each NUMA node, most first; empty with one node."""

    @property
    def memory(self) -> int:
        """Bytes that may be used in all: the smaller of the container's limit and free memory."""
        known = [size for size in (self.cgroup_memory, self.available_memory) if size is not None]
        return min(known, default=0)

    @property
    def memory_reason(self) -> str:
        if self.cgroup_memory is not None and self.memory == self.cgroup_memory:
            return "the cgroup's memory limit"
        return "available memory"


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads compute, and why."""

    count: int
    reason: str

    def __str__(self) -> str:
        return f"{self.count} thread{'s' if self.count != 1 else ''}: {self.reason}"


def inspect(
    cgroups: Path = CGROUPS,
    proc: Path = PROC,
    affinity: int | None = None,
    nodes: Path = numa.NODES,
) -> Machine:
    """Look at the machine. Files that are missing or unreadable count as no limit."""
    return Machine(
        affinity=affinity or _affinity(),
        cpu_quota=min(_cpu_quotas(cgroups, proc), default=None),
        cgroup_memory=min(_memory_limits(cgroups, proc), default=None),
        available_memory=_available_memory(proc),
        numa_nodes=tuple(len(node) for node in numa.nodes(root=nodes)),
    )


def choose_threads(
    machine: Machine, flag: int | None = None, env: Mapping[str, str] | None = None
) -> Threads:
    """max(1, min(affinity, floor(quota), one NUMA node)); --threads wins, then OMP_NUM_THREADS."""
    if flag is not None:
        return Threads(flag, "--threads")
    wish = (os.environ if env is None else env).get(NUM_THREADS, "").split(",")[0].strip()
    if wish.isdecimal() and int(wish) > 0:
        return Threads(int(wish), NUM_THREADS)
    quota = machine.cpu_quota
    count = machine.affinity if quota is None else min(machine.affinity, math.floor(quota))
    shown = "none" if quota is None else f"{quota:g}"
    reason = f"affinity {machine.affinity}, cgroup quota {shown}"
    if machine.numa_nodes and count > machine.numa_nodes[0]:
        count = machine.numa_nodes[0]
        reason += f", one of {len(machine.numa_nodes)} NUMA nodes"
    return Threads(max(1, count), reason)


def limit_thread_pools(count: int, environ: MutableMapping[str, str]) -> None:
    """Hold every thread pool of this process, and of those it starts, to `count` threads; BLAS to
    one, since products are shared out among threads of our own (`ops.workers`).

    The pools read their variables once, when their library is first loaded: call this before numpy
    is imported. Raises RuntimeError where it is too late for that.
    """
    wanted = {**dict.fromkeys(POOLS, str(count)), **dict.fromkeys(BLAS_POOLS, "1")}
    if "numpy" in sys.modules and any(environ.get(pool) != wish for pool, wish in wanted.items()):
        raise RuntimeError("the number of threads must be set before numpy is imported")
    environ.update(wanted)


def thread_pools_limited(environ: Mapping[str, str]) -> bool:
    """Whether `limit_thread_pools` was called here, or by the process that started this one."""
    return all(pool in environ for pool in POOLS) and all(
        environ.get(pool) == "1" for pool in BLAS_POOLS
    )


def raise_open_file_limit(wanted: int = 65536) -> tuple[int, int]:
    """Raise the soft limit of open files towards `wanted`, as far as the hard limit allows.
    Returns (before, after); each stream and connection takes one."""
    try:
        import resource
    except ImportError:
        return (0, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return (soft, soft)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        return (soft, soft)
    return (soft, target)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_quotas(cgroups: Path, proc: Path) -> Iterator[float]:
    """The quotas in processors of the process's cgroups and of all groups above them."""
    for folder in _folders(cgroups, proc, "cpu"):
        words = _read(folder / "cpu.max").split()
        if not words:
            quota = _read(folder / "cpu.cfs_quota_us").strip()
            words = [quota, _read(folder / "cpu.cfs_period_us").strip()]
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])


def _memory_limits(cgroups: Path, proc: Path) -> Iterator[int]:
    for folder in _folders(cgroups, proc, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read(folder / name).strip()
            if limit.isdecimal() and int(limit) < _UNLIMITED:
                yield int(limit)


def _folders(cgroups: Path, proc: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's own cgroup for `controller` and of all above it.

    Inside a container the path in /proc may be the host's, while the mount shows only the
    container's part: folders that do not exist are passed over, the mount itself always counts.
    """
    for line in _read(proc / "self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        if not controllers:
            mounts = [cgroups, cgroups / "unified"]
        elif controller in controllers.split(","):
            mounts = [cgroups / controllers, cgroups / controller]
        else:
            continue
        steps = [step for step in path.split("/") if step not in ("", "..")]
        for mount in dict.fromkeys(mounts):
            for depth in range(len(steps), -1, -1):
                folder = mount.joinpath(*steps[:depth])
                if folder.is_dir():
                    yield folder


def _available_memory(proc: Path) -> int | None:
    for line in _read(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
