"""A copy of the package with kernels of a special build, and the tests run on it.

Owns: building with CMake's options, the copy in build/<name>/tree, the environment of its tests.
Does not know: what the special build is for (sanitize.py, emulate.py). Standard library only; needs
cmake and nanobind in this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

WITHOUT_EDITABLE = """\
import sys

# An editable install would find its own, plain build of the kernels first.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
"""


def build(name: str, options: list[str]) -> dict[str, str]:
    """Builds, copies, and returns the environment in which `import octavo` finds the copy."""
    # Tools of this environment first: cmake, and ninja where it is.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        sys.exit(f"{name}: no cmake; run `make {name}`, which installs it")
    folder = ROOT / "build" / name
    made, tree = folder / "cmake", folder / "tree"
    options = [f"-DPython_EXECUTABLE={sys.executable}", *options]
    for command in (
        [cmake, "-S", str(ROOT / "csrc"), "-B", str(made), *options],
        [cmake, "--build", str(made), "--parallel", "2"],
    ):
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree, ignore_errors=True)
    unwanted = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "octavo", tree / "octavo", ignore=unwanted)
    for library in made.glob("_native*.so"):
        shutil.copy2(library, tree / "octavo" / "ops")
    (tree / "sitecustomize.py").write_text(WITHOUT_EDITABLE)
    return environment | {
        "PYTHONPATH": str(tree),
        # Tests that start pytest anew, for another instruction set, inherit this.
        "PYTEST_ADDOPTS": f"-p no:cacheprovider -o 'pythonpath={tree} tests'",
    }


def run_tests(name: str, environment: dict[str, str], arguments: list[str]) -> int:
    """Says which kernels are used, and runs pytest; returns its exit code."""
    say = "n.load_native()[0].__file__, n.build_info()['isa']"
    check = f"import octavo.ops.native as n; print('{name}:', {say})"
    subprocess.run([sys.executable, "-c", check], env=environment, check=True, cwd=ROOT)
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT).returncode
