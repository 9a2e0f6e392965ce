"""The families of models that are supported, and the table that leads to them.

Owns: the table; `find_family`, the one place that says "not supported" (in
the words of `unsupported`).
Does not know: files and tensors (registry, weights, gguf_model).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.model.errors import ModelError
from octavo.model.families import (
    gemma,
    gemma2,
    gemma3,
    gpt_neox,
    llama,
    mistral,
    qwen2,
    qwen3,
    smollm3,
)
from octavo.model.families.family import Family
from octavo.model.families.unsupported import unsupported

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    mistral.FAMILY,
    gemma.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    gemma3.WITH_PICTURES,
    smollm3.FAMILY,
    gpt_neox.FAMILY,
)


def find_family(
    config: dict[str, Any], origin: str, families: Sequence[Family] = FAMILIES
) -> Family:
    """The family of a config.json; ModelError (code "unsupported_architecture") if there is none.

    `architectures` decides; where it is missing or empty, `model_type` does.
    """
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(
            f"{origin}: architectures is {names!r:.60}, not a list of names", "bad_config"
        )
    for family in families:
        if family.architecture in names:
            return family
    kind = config.get("model_type")
    if not names:
        for family in families:
            if kind == family.model_type:
                return family
    found = f"architectures {names}" if names else "no architectures"
    named = [*names, *([kind] if isinstance(kind, str) else [])]
    raise unsupported(origin, f"{found} and model_type {kind!r}", named, families, config)


def find_gguf_family(
    architecture: object, origin: str, families: Sequence[Family] = FAMILIES
) -> Family:
    """The family of a GGUF file's `general.architecture`."""
    for family in families:
        if family.gguf_architecture is not None and architecture == family.gguf_architecture:
            return family
    named = [architecture] if isinstance(architecture, str) else []
    raise unsupported(origin, f"general.architecture {architecture!r}", named, families)
