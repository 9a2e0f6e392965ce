"""Runs a test file once more for each other instruction set that this machine has.

Owns: the subprocesses. The set is chosen when the extension is loaded, once in a process.
Does not know: what is tested.

    @pytest.mark.parametrize("isa", native_isas.others())
    def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
        native_isas.run(__file__, isa)
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from octavo.ops.native import build_info

VARIABLE = "OCTAVO_ISA"
ROOT = Path(__file__).resolve().parents[2]


def others() -> list[str]:
    """The sets besides the one in use; none without the extension, or where one is forced."""
    info = build_info()
    if not info or os.environ.get(VARIABLE):
        return []
    return [isa for isa in info["isas"] if isa != info["isa"]]


def run(file: str, isa: str, *options: str) -> None:
    """The tests of `file` in the instruction set `isa`; asserts that they pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file, *options],
        env={**os.environ, VARIABLE: isa},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"in {isa}:\n{done.stdout[-6000:]}{done.stderr[-2000:]}"
