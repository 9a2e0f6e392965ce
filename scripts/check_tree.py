"""Checks the tree: which way imports point, how long files and functions are. Prints line counts.

Run by `make lint`; exits with 1 and one line a fault. Standard library only.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

CORE_DATA = ("octavo.core.request", "octavo.core.params", "octavo.core.plan")

ANY_OF_OURS = ("octavo",)

ALLOWED: dict[str, tuple[str, ...]] = {
    "octavo.core": ("octavo.core",),
    "octavo.ops": ("octavo.ops",),
    "octavo.config": ("octavo.config",),
    "octavo.numa": (),
    "octavo.progress": (),
    "octavo.machine": ("octavo.numa",),
    "octavo.text": ("octavo.text", *CORE_DATA, "octavo.model.info"),
    "octavo.model": (
        "octavo.model",
        "octavo.ops",
        "octavo.core.plan",
        "octavo.core.params",
        "octavo.engine.messages",
    ),
    "octavo.tiers": ("octavo.tiers", "octavo.core.plan"),
    "octavo.engine": ("octavo.engine", "octavo.core"),
    "octavo.engine.build": ("octavo.engine", "octavo.core", "octavo.tiers"),
    "octavo.engine.process": (
        "octavo.engine",
        "octavo.core",
        "octavo.model",
        "octavo.machine",
        "octavo.numa",
    ),
    "octavo.engine.__init__": ("octavo.offline.llm_engine",),
    "octavo.offline": (
        "octavo.offline",
        "octavo.config",
        "octavo.core",
        "octavo.deploy",
        "octavo.engine",
        "octavo.frontend",
        "octavo.machine",
        "octavo.model",
        "octavo.progress",
        "octavo.text",
    ),
    "octavo.sim": ("octavo.sim", "octavo.engine", "octavo.core"),
    "octavo.deploy": (
        "octavo.config",
        "octavo.core",
        "octavo.engine.messages",
        "octavo.machine",
        "octavo.model",
    ),
    "octavo.frontend": ("octavo.text", "octavo.model.info", "octavo.model.gguf"),
    "octavo.server": (
        "octavo.server",
        "octavo.batchq",
        "octavo.frontend",
        "octavo.config",
        "octavo.text",
        "octavo.engine.choices",
        "octavo.engine.client",
        "octavo.engine.launch",
        "octavo.engine.errors",
        "octavo.engine.health",
        "octavo.engine.messages",
        "octavo.engine.stream",
        *CORE_DATA,
        "octavo.model.info",
    ),
    "octavo.batchq": ("octavo.batchq",),
    "octavo.bench": ANY_OF_OURS,
    "octavo.cli": ANY_OF_OURS,
    "octavo.entrypoints": ANY_OF_OURS,
    "octavo.__init__": ANY_OF_OURS,
    "octavo.__main__": ANY_OF_OURS,
}
"""Module (or package) -> what of ours it may import. The longest name that fits decides."""

GPU_EXTRA = {"torch", "triton"}
GPU_MODULES = (
    "octavo.ops.cuda",
    "octavo.ops.cuda_attention",
    "octavo.ops.cuda_cache",
    "octavo.ops.cuda_experts",
    "octavo.ops.triton.rms_norm",
)
"""The modules that import the extra `gpu`: no other may, and whatever imports "everything" leaves
them out, because the base install has no torch."""

BATCH_EXTRA = {"sqlalchemy", "python_multipart"}
BATCH_MODULES = (
    "octavo.batchq.database",
    "octavo.batchq.files",
    "octavo.batchq.store",
    "octavo.server.batching",
)
"""The modules that import the extra `batch`; all but the last are themselves imported only when
batches are wanted."""

NOT_IN_CORE = {"asyncio", "socket", "logging", "time", "threading", "multiprocessing", "os", "sys"}
"""Parts of the standard library that the core must do without."""


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    @property
    def rule(self) -> str | None:
        parts = self.name.split(".")
        names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        if self.path.name == "__init__.py":
            names.insert(0, f"{self.name}.__init__")
        return next((name for name in names if name in ALLOWED), None)


def modules(source: Path = SOURCE) -> Iterator[Module]:
    for path in sorted(source.rglob("*.py")):
        parts = list(path.relative_to(source).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        yield Module(".".join(parts), path, ast.parse(path.read_text(encoding="utf-8")))


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, wherever in it the import stands."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                yield node.lineno, f"(relative import of {base})"
            elif base == "octavo" or (base.count(".") == 1 and base.startswith("octavo.")):
                # `from octavo.core import plan` imports octavo.core.plan.
                for alias in node.names:
                    yield node.lineno, f"{base}.{alias.name}"
            else:
                yield node.lineno, base


def import_faults(module: Module) -> Iterator[str]:
    rule = module.rule
    if rule is None:
        yield f"{module.name}: no rule says what it may import"
        return
    for line, name in imports(module):
        if name.split(".")[0] == "octavo":
            allowed = any(name == one or name.startswith(one + ".") for one in ALLOWED[rule])
        elif rule in ("octavo.core", "octavo.machine", "octavo.numa"):
            top = name.split(".")[0]
            allowed = top in sys.stdlib_module_names
            allowed = allowed and not (rule == "octavo.core" and top in NOT_IN_CORE)
        elif name.split(".")[0] in GPU_EXTRA:
            allowed = module.name in GPU_MODULES
        elif name.split(".")[0] in BATCH_EXTRA:
            allowed = module.name in BATCH_MODULES
        else:
            allowed = not name.startswith("(relative")
        if not allowed:
            yield f"{module.path.relative_to(ROOT)}:{line}: {rule} may not import {name}"


def size_faults(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    shown = path.relative_to(ROOT)
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{shown}: {lines} lines (at most {MAX_FILE_LINES})"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield (
                    f"{shown}:{node.lineno}: {node.name} has {length} lines "
                    f"(at most {MAX_FUNCTION_LINES})"
                )


def code_files() -> Iterator[Path]:
    for folder in ("src", "tests", "scripts", "csrc"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".cpp", ".h", ".hpp"} and "__pycache__" not in path.parts:
                yield path


def line_counts() -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in code_files():
        parts = path.relative_to(ROOT).parts
        area = "/".join(parts[:3]) if parts[0] == "src" and len(parts) > 3 else "/".join(parts[:2])
        area = parts[0] if parts[0] in {"tests", "scripts", "csrc"} else area
        counts[area] += path.read_text(encoding="utf-8").count("\n")
    return counts


def main() -> int:
    faults = [fault for module in modules() for fault in import_faults(module)]
    faults += [fault for path in code_files() for fault in size_faults(path)]
    counts = line_counts()
    for area, lines in sorted(counts.items()):
        print(f"{lines:7,}  {area}")
    own = sum(lines for area, lines in counts.items() if area.startswith("src"))
    print(f"{own:7,}  lines of Python in src; {sum(counts.values()):,} in all")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
