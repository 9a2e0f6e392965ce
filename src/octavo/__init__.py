"""Octavo: an LLM serving engine.

The public names are loaded when they are first used: `import octavo` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.core.params import SamplingParams
    from octavo.offline.llm import LLM
    from octavo.offline.llm_engine import LLMEngine
    from octavo.offline.outputs import CompletionOutput, RequestOutput

__all__ = ["LLM", "CompletionOutput", "LLMEngine", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "octavo.offline.llm",
    "LLMEngine": "octavo.offline.llm_engine",
    "RequestOutput": "octavo.offline.outputs",
    "CompletionOutput": "octavo.offline.outputs",
    "SamplingParams": "octavo.core.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
