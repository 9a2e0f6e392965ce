"""Builds the kernels with sanitizers and runs the tests of the ops on them.

Run by `make sanitize`, or: python scripts/sanitize.py [pytest's arguments]. Needs octavo installed,
and GCC with its sanitizer libraries. Only what this processor can run is built.

AddressSanitizer finds reads and writes out of bounds and uses after free; UBSan what the language
does not define (overflows, shifts, misaligned loads). A finding ends the run. The interpreter is
not built with them: their library is loaded before it, its own small-object allocator (which would
hide errors) is off, and so is the search for leaks (Python frees little at its end).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from native_build import build, run_tests

from octavo.ops.native import build_info

NAME = "sanitize"


def library(name: str) -> str:
    """Where the compiler has it. The C++ library is loaded early too: ASan looks for its throw."""
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"sanitize: the compiler has no {name}; on Debian or Ubuntu: apt-get install g++")
    return path


def main(arguments: list[str]) -> int:
    runs_here = build_info().get("isas", ["generic"])
    options = [
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        "-DOCTAVO_SANITIZE=address,undefined",
        f"-DOCTAVO_ISAS={';'.join(runs_here)}",
    ]
    environment = build(NAME, options) | {
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    # A finding is written by C code that ends the process: pytest must not hold it back.
    return run_tests(NAME, environment, ["--capture=sys", *(arguments or ["tests/ops"])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
