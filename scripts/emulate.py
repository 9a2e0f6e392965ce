"""Runs the tests of the kernels in every instruction set, AVX512 in software where need be.

Run by `make emulate`, or: python scripts/emulate.py [pytest's arguments]. Needs SIMDe's headers
(Debian: libsimde-dev) and an x86-64 processor with AVX2. It shows that a variant is right, not how
fast it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from native_build import build, run_tests

NAME = "emulate"
HEADERS = [Path("/usr/include/simde"), Path("/usr/local/include/simde")]
TESTS = [
    "tests/ops",
    "tests/promises/test_same_tokens.py",
    "-k",
    "not reference and not instruction_set",
]


def main(arguments: list[str]) -> int:
    if not any(path.is_dir() for path in HEADERS):
        sys.exit("emulate: SIMDe is missing; on Debian or Ubuntu: apt-get install libsimde-dev")
    environment = build(NAME, ["-DOCTAVO_EMULATE=ON", "-DOCTAVO_ISAS=avx512;avx512bf16"])
    code = 0
    for isa in ("avx512", "avx512bf16"):
        code = run_tests(NAME, environment | {"OCTAVO_ISA": isa}, arguments or TESTS) or code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
