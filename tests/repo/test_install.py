"""The base install stays light, and the scripts that make it say what is wrong."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from support.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MEBIBYTE = 1024**2

check_tree = load_script("check_tree")


def closure(requirements: list[str]) -> set[str]:
    """The distributions that `requirements` bring in, as installed here."""
    found: set[str] = set()
    queue = [Requirement(text) for text in requirements]
    while queue:
        requirement = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in found:
            found.add(name)
            queue += [Requirement(text) for text in metadata.requires(name) or []]
    return found


def size(name: str) -> int:
    """Bytes on disk of one distribution, with room for its compiled bytecode."""
    files = metadata.files(name) or []
    paths = {Path(str(file.locate())) for file in files}
    return sum(
        path.stat().st_size * (2 if path.suffix == ".py" else 1)
        for path in paths
        if path.suffix != ".pyc" and path.is_file()
    )


def test_the_base_install_is_under_300_mib_and_without_torch() -> None:
    names = closure(PROJECT["dependencies"])
    assert {"numpy", "tokenizers", "starlette", "anyio"} <= names
    assert not names & {"torch", "transformers", "fastapi"}
    sizes = {name: size(name) for name in names | {"pip", "setuptools"}}
    assert sum(sizes.values()) < 300 * MEBIBYTE, sorted(sizes.items(), key=lambda item: -item[1])


def test_every_library_that_the_code_imports_is_declared() -> None:
    """Imports of the source against the dependencies, by the names of the modules they bring."""
    declared = {Requirement(text).name.lower() for text in PROJECT["dependencies"]}
    optional = PROJECT["optional-dependencies"]
    gpu = {Requirement(text).name for text in optional["gpu"]}
    batch = {Requirement(text).name for text in optional["batch"]}
    brought = metadata.packages_distributions()
    for module in check_tree.modules():
        for line, name in check_tree.imports(module):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top == "octavo":
                continue
            owners = {owner.lower().replace("_", "-") for owner in brought.get(top, [top])}
            extra = gpu if module.name in check_tree.GPU_MODULES else set()
            extra = batch if module.name in check_tree.BATCH_MODULES else extra
            assert owners & (declared | extra), f"{module.name}:{line} imports {name}"


def test_scripts_are_executable() -> None:
    for name in (".ci/run", "scripts/venv.sh"):
        assert (ROOT / name).stat().st_mode & stat.S_IXUSR, name


def run_venv(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"PATH": path} if path else {})}
    return subprocess.run(
        ["/bin/bash", str(ROOT / "scripts/venv.sh"), *words],
        capture_output=True,
        text=True,
        env=env,
    )


def fake_python(folder: Path, old: bool, has_venv: bool) -> str:
    """A python that fails the checks it is told to fail."""
    script = folder / "python-fake"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        "  -V) echo Python 3.9.1;;\n"
        f"  *version_info*) exit {int(old)};;\n"
        f"  *ensurepip*) exit {int(not has_venv)};;\n"
        '  *venv*) mkdir -p "$3/bin"; touch "$3/bin/python"; chmod +x "$3/bin/python";;\n'
        "esac\n"
    )
    script.chmod(0o755)
    return str(script)


def test_making_an_environment_without_python(tmp_path: Path) -> None:
    result = run_venv("no-such-python", str(tmp_path / "env"))
    assert result.returncode == 1
    assert "Python 3.11 or newer" in result.stderr and "apt-get install" in result.stderr


def test_making_an_environment_with_an_old_python(tmp_path: Path) -> None:
    result = run_venv(fake_python(tmp_path, old=True, has_venv=True), str(tmp_path / "env"))
    assert result.returncode == 1
    assert "is Python 3.9.1" in result.stderr and "make PYTHON=" in result.stderr


def test_making_an_environment_without_the_venv_package(tmp_path: Path) -> None:
    result = run_venv(fake_python(tmp_path, old=False, has_venv=False), str(tmp_path / "env"))
    assert result.returncode == 1
    assert "apt-get install -y python3-venv" in result.stderr


def test_making_an_environment_without_a_compiler_works_and_says_so(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("mkdir", "touch", "chmod"):
        (tools / tool).symlink_to(f"/bin/{tool}")
    python = fake_python(tmp_path, old=False, has_venv=True)
    result = run_venv(python, str(tmp_path / "env"), path=str(tools))
    assert result.returncode == 0, result.stderr
    assert "No C++ compiler" in result.stderr and "g++" in result.stderr
    assert (tmp_path / "env/bin/python").exists()
