"""The families of models that are supported, and the table that leads to them.

Owns: the table; `find_family`, the one place that says "not supported".
Does not know: files and tensors (registry, weights, gguf_model).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.model.errors import ModelError
from octavo.model.families import gpt_neox, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3_moe
from octavo.model.families.family import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    qwen2.FAMILY,
    mistral.FAMILY,
    gpt_neox.FAMILY,
    mixtral.FAMILY,
    qwen2_moe.FAMILY,
    qwen3_moe.FAMILY,
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
    raise _unsupported(origin, f"{found} and model_type {kind!r}", families)


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
    raise _unsupported(origin, f"general.architecture {architecture!r}", families)


def _unsupported(origin: str, found: str, families: Sequence[Family]) -> ModelError:
    names = ", ".join(family.architecture for family in families)
    ggufs = dict.fromkeys(f.gguf_architecture for f in families if f.gguf_architecture)
    return ModelError(
        f"{origin}: this model's architecture is not supported: found {found}",
        "unsupported_architecture",
        f"Supported are {names} (in GGUF: {', '.join(ggufs)}). "
        "Choose such a model, or a newer version of Octavo.",
    )
