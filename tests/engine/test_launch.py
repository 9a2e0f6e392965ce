"""Engine processes that are started early."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from octavo.engine.launch import EarlyEngine
from octavo.engine.messages import EngineConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_an_early_process_that_nobody_took_is_ended() -> None:
    with EarlyEngine() as early:
        process = early._early
        assert process is not None and runs(process.pid)
    assert await process.exited() == -9


async def test_the_first_call_gives_the_early_process_and_others_new_ones() -> None:
    with EarlyEngine() as early:
        first, second = early(), early()
        assert first.pid != second.pid
    for process in (first, second):
        assert runs(process.pid), "whoever took it keeps it"
        process.socket.close()  # it sees that its client has gone
        assert await process.exited(30) == 0
        process.close()


async def test_what_it_loads_may_be_told_early_and_is_told_once() -> None:
    config = EngineConfig(model="m", served_name="m", max_model_len=16, num_blocks=4)
    with EarlyEngine() as early:
        early.load(config)
        process = early()
        assert process.config == config
        process.load(replace(config))
        with pytest.raises(ValueError, match="loads something else"):
            process.load(replace(config, num_blocks=5))
        process.kill()
        await process.exited(30)
        process.config = None
        process.load(config)  # it is gone: whoever connects finds that out
        process.socket.close()
        process.close()


@pytest.mark.parametrize("limited", [True, False])
def test_modules_are_imported_early_only_where_thread_pools_are_limited(limited: bool) -> None:
    limit = "limit_thread_pools(2, os.environ)" if limited else "os.environ.clear()"
    code = f"""
import os, sys
from octavo.machine import limit_thread_pools
from octavo.engine.process import EARLY, _import_early
assert "numpy" not in sys.modules
{limit}
_import_early()
assert all((name in sys.modules) is {limited} for name in (*EARLY, "numpy"))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
