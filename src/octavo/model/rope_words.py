"""What a configuration says of rope scaling, in words.

Owns: those words.
Does not know: what the kinds compute (rope), which has refused already what cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def rope_words(config: Mapping[str, Any], divisors: Sequence[float] = ()) -> str:
    """E.g. "yarn, factor 4, from 32,768 positions"; empty where positions are not scaled.
    `divisors` are GGUF's rope_freqs."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = _kind(scaling) if isinstance(scaling, Mapping) else ""
    if kind in ("", "default", "none"):
        return "frequencies divided by rope_freqs" if divisors else ""
    words = [kind]
    if isinstance(factor := scaling.get("factor"), int | float):
        words.append(f"factor {factor:g}")
    original = scaling.get("original_max_position_embeddings")
    if isinstance(original, int):
        words.append(f"from {original:,} positions")
    return ", ".join(words)


def _kind(scaling: Mapping[str, Any]) -> str:
    """Its kind; where layers differ in it, all of theirs."""
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind is not None:
        return str(kind)
    parts = [part for part in scaling.values() if isinstance(part, Mapping)]
    kinds = dict.fromkeys(_kind(part) for part in parts)
    return " and ".join(kind for kind in kinds if kind not in ("", "default", "none"))
