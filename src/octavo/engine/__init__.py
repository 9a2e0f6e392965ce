"""The engine: the loop over steps, its process, and the client half that survives it.

`octavo.engine.LLMEngine`, the name that users of such engines know, is loaded when it is used:
importing one module of this package must stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.offline.llm_engine import LLMEngine

__all__ = ["LLMEngine"]


def __getattr__(name: str) -> Any:
    if name == "LLMEngine":
        from octavo.offline.llm_engine import LLMEngine

        return LLMEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
