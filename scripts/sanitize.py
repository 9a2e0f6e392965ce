"""Builds the kernels with sanitizers and runs the tests of the ops on them.

Run by `make sanitize`, or: python scripts/sanitize.py [pytest's arguments]. Standard library only;
needs cmake and nanobind in the environment, and GCC with its sanitizer libraries.

AddressSanitizer finds reads and writes out of bounds and uses after free; UBSan what the language
does not define (overflows, shifts, misaligned loads). A finding ends the run. The interpreter is
not built with them: their library is loaded before it, its own small-object allocator (which would
hide errors) is off, and so is the search for leaks (Python frees little at its end).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "sanitize"
TREE = BUILD / "tree"

WITHOUT_EDITABLE = """\
import sys

# An editable install would find its own, plain build of the kernels first.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
"""


def build(environment: dict[str, str]) -> None:
    """The package with the checked kernels, in TREE."""
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        "-DOCTAVO_SANITIZE=address,undefined",
    ]
    cmake = shutil.which("cmake", path=environment["PATH"])
    if cmake is None:
        sys.exit("sanitize: no cmake; run `make sanitize`, which installs it")
    command = [cmake, "-S", str(ROOT / "csrc"), "-B", str(BUILD / "cmake"), *options]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    command = [cmake, "--build", str(BUILD / "cmake"), "--parallel", "2"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(TREE, ignore_errors=True)
    unwanted = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "octavo", TREE / "octavo", ignore=unwanted)
    for library in (BUILD / "cmake").glob("_native*.so"):
        shutil.copy2(library, TREE / "octavo" / "ops")
    (TREE / "sitecustomize.py").write_text(WITHOUT_EDITABLE)


def library(name: str) -> str:
    """Where the compiler has it. The C++ library is loaded early too: ASan looks for its throw."""
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"sanitize: the compiler has no {name}; on Debian or Ubuntu: apt-get install g++")
    return path


def main(arguments: list[str]) -> int:
    # Tools of this environment first: cmake, and ninja where it is.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    build(environment)
    environment |= {
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(TREE),
        # Tests that start pytest anew, for another instruction set, inherit this.
        "PYTEST_ADDOPTS": f"-p no:cacheprovider -o 'pythonpath={TREE} tests'",
    }
    check = "import octavo.ops.native as n; print('sanitize:', n.load_native()[0].__file__)"
    subprocess.run([sys.executable, "-c", check], env=environment, check=True, cwd=ROOT)
    command = [sys.executable, "-m", "pytest", *(arguments or ["tests/ops"])]
    return subprocess.run(command, env=environment, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
