"""Whether the compiled kernels are part of this install, and if not, why.

Owns: importing the extension module, and the words about its absence.
Does not know: what the kernels compute.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib import resources
from types import ModuleType
from typing import Any

MODULE = "octavo.ops._native"
REASON_FILE = "native_missing.txt"
"""Written by the build (csrc/CMakeLists.txt) where it left the extension out."""

INSTALL_HINT = (
    "To have them: sudo apt install g++ python3-dev, then pip install --force-reinstall octavo. "
    "Without them everything works, but slower."
)


def load_native() -> tuple[ModuleType | None, str]:
    """The extension module, or None and why it is not there."""
    try:
        return importlib.import_module(MODULE), ""
    except ModuleNotFoundError:
        return None, _recorded_reason()
    except ImportError as error:
        return None, f"the compiled kernels cannot be loaded: {error}"


def native_installed() -> bool:
    """Whether the extension module is there; it is not loaded by this."""
    return importlib.util.find_spec(MODULE) is not None


def native_available() -> bool:
    return load_native()[0] is not None


def native_reason() -> str:
    """Why the compiled kernels are missing, in one line; empty where they are there."""
    return load_native()[1]


def build_info() -> dict[str, Any]:
    """The compiler, the instruction sets that run here (`isas`, best first) and the one in use
    (`isa`); empty without the kernels."""
    module = load_native()[0]
    return {} if module is None else dict(module.build_info())


def _recorded_reason() -> str:
    record = resources.files("octavo.ops") / REASON_FILE
    if record.is_file():
        return f"this install has no compiled kernels: {record.read_text().strip()}"
    return "octavo runs from a source tree in which the compiled kernels were not built"
