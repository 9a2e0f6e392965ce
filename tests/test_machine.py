"""Threads and memory come from the container as well as from the machine (H01, H02)."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.machine import Machine, choose_threads, inspect

GIB = 1024**3


class FakeMachine:
    """A tree of /sys/fs/cgroup and /proc in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.cgroups = root / "cgroup"
        self.proc = root / "proc"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()

    def write(self, name: str, text: str) -> None:
        path = self.cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def belongs(self, text: str, available: int = 64 * GIB) -> None:
        (self.proc / "self/cgroup").write_text(text)
        (self.proc / "meminfo").write_text(
            f"MemTotal: 99999999 kB\nMemAvailable:   {available // 1024} kB\n"
        )

    def inspect(self, affinity: int = 8) -> Machine:
        return inspect(self.cgroups, self.proc, affinity, self.proc / "nodes")


@pytest.fixture
def fake(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_h01_no_limit(fake: FakeMachine) -> None:
    fake.belongs("0::/\n")
    fake.write("cpu.max", "max 100000\n")
    machine = fake.inspect(affinity=2)
    threads = choose_threads(machine, env={})
    assert str(threads) == "2 threads: affinity 2, cgroup quota none"


@pytest.mark.parametrize(
    ("quota", "affinity", "count"),
    [("200000", 8, 2), ("250000", 8, 2), ("50000", 8, 1), ("900000", 4, 4), ("100000", 1, 1)],
)
def test_h01_quota_of_cgroup_v2(fake: FakeMachine, quota: str, affinity: int, count: int) -> None:
    fake.belongs("0::/pod/box\n")
    fake.write("pod/box/cpu.max", f"{quota} 100000\n")
    assert choose_threads(fake.inspect(affinity), env={}).count == count


def test_h01_quota_of_cgroup_v1(fake: FakeMachine) -> None:
    fake.belongs("4:memory:/box\n3:cpu,cpuacct:/box\n")
    fake.write("cpu,cpuacct/box/cpu.cfs_quota_us", "300000\n")
    fake.write("cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
    fake.write("cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    fake.write("cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    threads = choose_threads(fake.inspect(), env={})
    assert str(threads) == "3 threads: affinity 8, cgroup quota 3"


def test_h01_nested_groups_take_the_least(fake: FakeMachine) -> None:
    fake.belongs("0::/pod/box\n")
    fake.write("pod/cpu.max", "150000 100000\n")
    fake.write("pod/box/cpu.max", "400000 100000\n")
    fake.write("pod/memory.max", str(2 * GIB))
    fake.write("pod/box/memory.max", "max")
    machine = fake.inspect()
    assert machine.cpu_quota == 1.5
    assert choose_threads(machine, env={}).count == 1
    assert machine.memory == 2 * GIB
    assert machine.memory_reason == "the cgroup's memory limit"


def test_h01_host_path_inside_a_container_falls_back_to_the_mount(fake: FakeMachine) -> None:
    fake.belongs("3:cpu:/docker/abc\n2:memory:/docker/abc\n")
    fake.write("cpu/cpu.cfs_quota_us", "200000")
    fake.write("cpu/cpu.cfs_period_us", "100000")
    fake.write("memory/memory.limit_in_bytes", str(GIB))
    machine = fake.inspect()
    assert machine.cpu_quota == 2.0
    assert machine.memory == GIB


def test_h01_flag_wins_then_omp_num_threads(fake: FakeMachine) -> None:
    fake.belongs("0::/\n")
    machine = fake.inspect(affinity=4)
    assert str(choose_threads(machine, 6, {"OMP_NUM_THREADS": "3"})) == "6 threads: --threads"
    assert str(choose_threads(machine, None, {"OMP_NUM_THREADS": "3"})) == (
        "3 threads: OMP_NUM_THREADS"
    )
    for odd in ("", "many", "0", "-2"):
        assert choose_threads(machine, None, {"OMP_NUM_THREADS": odd}).count == 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks here")
def test_h01_affinity_mask_of_the_process() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from octavo.machine import inspect; print(inspect().affinity)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "1", result.stderr


@pytest.mark.parametrize(
    ("limit", "available", "expected", "reason"),
    [
        (str(GIB), 8 * GIB, GIB, "the cgroup's memory limit"),
        (str(8 * GIB), 2 * GIB, 2 * GIB, "available memory"),
        ("max", 2 * GIB, 2 * GIB, "available memory"),
        ("9223372036854771712", 3 * GIB, 3 * GIB, "available memory"),
    ],
)
def test_h02_memory_is_the_less_of_limit_and_available(
    fake: FakeMachine, limit: str, available: int, expected: int, reason: str
) -> None:
    fake.belongs("4:memory:/box\n", available)
    fake.write("memory/box/memory.limit_in_bytes", limit)
    machine = fake.inspect()
    assert (machine.memory, machine.memory_reason) == (expected, reason)


def test_a_machine_without_these_files_still_has_figures(tmp_path: Path) -> None:
    machine = inspect(tmp_path / "none", tmp_path / "none")
    assert machine.affinity >= 1
    assert machine.cpu_quota is None and machine.cgroup_memory is None
    assert machine.memory > 0


def test_this_machine_is_read() -> None:
    machine = inspect()
    assert machine.memory > 64 * 1024**2
    assert 1 <= choose_threads(machine, env={}).count <= machine.affinity


def test_h01_all_pools_of_a_process_are_held_to_the_count() -> None:
    code = (
        "import os; from octavo.machine import BLAS_POOLS, POOLS, limit_thread_pools as limit;"
        "limit(3, os.environ); assert {os.environ[pool] for pool in POOLS} == {'3'};"
        "assert {os.environ[pool] for pool in BLAS_POOLS} == {'1'};"
        "import numpy; limit(3, os.environ)\n"
        "try: limit(2, os.environ)\n"
        "except RuntimeError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "before numpy is imported" in result.stdout, result.stderr


def test_open_files_are_raised_to_the_hard_limit_at_most() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource as r; _, hard = r.getrlimit(r.RLIMIT_NOFILE);"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, hard));"
        "from octavo.machine import raise_open_file_limit as up; print(*up(128), *up(32))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["64", "128", "128", "128"], result.stderr
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
