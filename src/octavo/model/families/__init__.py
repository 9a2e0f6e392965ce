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
    falcon,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    gptj,
    llama,
    mistral,
    mixtral,
    mpt,
    opt,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
    stablelm,
)
from octavo.model.families.family import Family
from octavo.model.families.unsupported import unsupported

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    mistral.FAMILY,
    mixtral.FAMILY,
    qwen2_moe.FAMILY,
    qwen3_moe.FAMILY,
    gemma.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    gemma3.WITH_PICTURES,
    smollm3.FAMILY,
    phi3.FAMILY,
    gpt_neox.FAMILY,
    mpt.FAMILY,
    falcon.FAMILY,
    gpt2.FAMILY,
    opt.FAMILY,
    gptj.FAMILY,
    stablelm.FAMILY,
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
        if {family.architecture, *family.also} & set(names):
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
    architecture: object,
    origin: str,
    families: Sequence[Family] = FAMILIES,
    *,
    routed: bool = False,
) -> Family:
    """The family of a GGUF file's `general.architecture`; `routed`: the file says that it has
    experts, which tells Mixtral from LLaMA."""
    found = [f for f in families if f.gguf_architecture and f.gguf_architecture == architecture]
    for family in (*(f for f in found if f.routed == routed), *found):
        return family
    named = [architecture] if isinstance(architecture, str) else []
    raise unsupported(origin, f"general.architecture {architecture!r}", named, families)
