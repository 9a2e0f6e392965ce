"""The core imports the standard library only, and of that nothing that has a clock or a socket."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import octavo.core

FORBIDDEN = {"numpy", "torch", "msgspec", "asyncio", "socket", "logging", "time", "threading"}

PROBE = """
import sys
before = set(sys.modules)
for name in sys.argv[1:]:
    __import__(name)
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def test_the_core_is_pure() -> None:
    names = [f"octavo.core.{m.name}" for m in pkgutil.iter_modules(octavo.core.__path__)]
    assert len(names) > 15
    # Without the site hooks, so that what an installed tool imports at start does not count.
    paths = [p for p in sys.path if p]
    probe = f"import sys; sys.path[:0] = {paths!r}\n" + PROBE
    found = subprocess.run(
        [sys.executable, "-S", "-c", probe, *names], capture_output=True, text=True, check=True
    )
    loaded = set(found.stdout.split())
    assert "octavo.core.scheduler" in loaded
    assert {name.split(".")[0] for name in loaded} & FORBIDDEN == set()
    ours = {name for name in loaded if name.startswith("octavo")}
    assert ours <= {"octavo", "octavo.core", *names}


def test_the_core_names_no_clock_socket_or_third_party_module() -> None:
    """`time` is loaded before any program starts, so sys.modules cannot tell who asked for it."""
    for path in sorted(Path(octavo.core.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top not in FORBIDDEN, (path, name)
                assert top in sys.stdlib_module_names or name.startswith("octavo.core"), (
                    path,
                    name,
                )
