"""The tree keeps its own rules: imports, sizes, purity of the core, what the code never does."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


check_tree = load_script("check_tree")
PATHS = sorted(SOURCE.rglob("*.py"))


def run_python(code: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_point_one_way() -> None:
    faults = [
        fault for module in check_tree.modules() for fault in check_tree.import_faults(module)
    ]
    assert faults == []


def test_files_and_functions_are_short() -> None:
    faults = [fault for path in check_tree.code_files() for fault in check_tree.size_faults(path)]
    assert faults == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("octavo.core.blocks", "import numpy"),
        ("octavo.core.blocks", "import time"),
        ("octavo.core.blocks", "def f():\n    import asyncio"),
        ("octavo.core.blocks", "from octavo.model.info import ModelInfo"),
        ("octavo.core.blocks", "from ..model import info"),
        ("octavo.ops.reference", "from octavo.core.plan import Row"),
        ("octavo.text.chat", "from octavo.core.scheduler import Scheduler"),
        ("octavo.text.chat", "from octavo.core import scheduler"),
        ("octavo.model.runner", "from octavo.core.scheduler import Scheduler"),
        ("octavo.engine.client", "import octavo.model.registry"),
        ("octavo.server.app", "from octavo.engine.engine_core import EngineCore"),
        ("octavo.server.app", "from octavo.ops import Ops"),
        ("octavo.config.kinds", "from octavo.core.plan import Row"),
        ("octavo.ops.reference", "import torch"),
        ("octavo.ops.select", "def f():\n    import triton.language"),
        ("octavo.unknown.area", "import json"),
    ],
)
def test_the_import_check_finds_faults(name: str, code: str) -> None:
    path = SOURCE / "x.py"
    fault = check_tree.import_faults(check_tree.Module(name, path, ast.parse(code)))
    assert len(list(fault)) == 1


def test_the_size_check_finds_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_tree, "ROOT", tmp_path)
    long = tmp_path / "long.py"
    long.write_text("def f():\n" + "    x = 1\n" * 80 + "y = 2\n" * 420)
    assert len(list(check_tree.size_faults(long))) == 2


def test_the_core_imports_nothing_but_plain_standard_library() -> None:
    names = [f"octavo.core.{path.stem}" for path in (SOURCE / "octavo/core").glob("[!_]*.py")]
    assert "octavo.core.scheduler" in names
    loaded = run_python(
        f"""
        import sys
        sys.path.insert(0, {str(SOURCE)!r})
        before = set(sys.modules)
        for name in {names!r}:
            __import__(name)
        print(*(set(sys.modules) - before))
        """,
        "-I",
        "-S",
    ).split()
    top = {name.split(".")[0] for name in loaded}
    assert not top & {"numpy", "torch", "asyncio", "socket", "logging", "threading", "msgspec"}
    assert top - {"octavo"} <= sys.stdlib_module_names


def test_nothing_on_the_cpu_path_imports_torch_or_transformers() -> None:
    names = [module.name for module in check_tree.modules()]
    # These are the GPU's path, and import an extra; test_imports_point_one_way finds any other.
    assert set(check_tree.GPU_MODULES) < set(names)
    names = [name for name in names if name not in ("octavo.__main__", *check_tree.GPU_MODULES)]
    loaded = run_python(
        f"""
        import sys
        for name in {names!r}:
            __import__(name)
        print(*sys.modules)
        """
    ).split()
    assert set(names) <= set(loaded)
    assert not {name.split(".")[0] for name in loaded} & {"torch", "transformers", "pydantic"}


def test_importing_octavo_loads_nothing_heavy() -> None:
    loaded = run_python("import sys, octavo; print(*sys.modules)").split()
    assert not {name.split(".")[0] for name in loaded} & {"numpy", "msgspec", "rich", "yaml"}


def faults_in(tree: ast.AST) -> Iterator[str]:
    """Things that the code of the product never does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {"pickle", "marshal", "shelve", "dill"} & {name.split(".")[0] for name in names}:
                yield f"line {node.lineno}: pickle and its like"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in {"eval", "exec", "yaml.load", "time.sleep", "os.system"}:
                yield f"line {node.lineno}: {called}"
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            silent = all(isinstance(line, ast.Pass) for line in node.body)
            if silent and caught in {"", "Exception", "BaseException"}:
                yield f"line {node.lineno}: an exception is passed over in silence"
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node):
            yield f"line {node.lineno}: not implemented"
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global"


def test_the_code_does_nothing_that_is_forbidden() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "/tmp/", "/work/")
    found = []
    for path in PATHS:
        text = path.read_text(encoding="utf-8")
        found += [f"{path}: {fault}" for fault in faults_in(ast.parse(text))]
        found += [f"{path}: {word}" for word in words if word in text]
    assert found == []


def test_modules_say_what_they_own() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in PATHS}
    mute = [path for path, text in texts.items() if text and not ast.get_docstring(ast.parse(text))]
    assert mute == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "yaml.load(x)",
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept:\n    pass",
        "raise NotImplementedError",
        "time.sleep(1)",
    ],
)
def test_the_check_for_what_is_forbidden_finds_faults(code: str) -> None:
    assert len(list(faults_in(ast.parse(code)))) == 1
