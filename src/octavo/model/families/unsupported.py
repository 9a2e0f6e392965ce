"""Why an architecture is not supported, and what comes nearest: the words of that refusal.

Owns: the kinds of models that are told apart (encoders, models that also see or hear, ...).
Does not know: configurations beyond the names in them, files.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.model.errors import ModelError
from octavo.model.families.family import Family

_TASKS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "Model")
"""Endings of class names in transformers, which say what a checkpoint was trained for."""
_OTHER_SENSES = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower", "visual")
_ENCODERS = frozenset(
    {
        *("bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta"),
        *("deberta-v2", "mpnet", "modernbert", "nomic-bert", "nomic_bert", "nomic-bert-moe"),
        *("jina-bert-v2", "jina-bert-v3", "neo-bert", "eurobert", "modern-bert", "camembert"),
    }
)
_ENCODER_TASKS = (
    "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
    "ForPreTraining",
)  # fmt: skip
_ENCODER_DECODERS = frozenset(
    {"t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "t5encoder", "led"}
)
_SEES_OR_HEARS = frozenset({"clip", "whisper", "mllama", "llava", "qwen2vl", "qwen3vl"})
_STATE_SPACE = ("mamba", "rwkv", "jamba", "falcon_h1", "falcon-h1", "plamo2")


def unsupported(
    origin: str,
    found: str,
    names: Sequence[str],
    families: Sequence[Family],
    config: Mapping[str, Any] | None = None,
) -> ModelError:
    """`names` are the architectures and model types that were found; `config` is config.json's
    contents (None: a GGUF file). ModelError with code "unsupported_architecture"."""
    kind = _kind(names, config)
    like = [] if kind in _NO_NEIGHBOURS else _near(names, families, gguf=config is None)
    reason = f" ({kind})" if kind else ""
    nearest = f"The nearest that is supported: {', '.join(like)}. " if like else ""
    return ModelError(
        f"{origin}: this model's architecture is not supported: found {found}{reason}",
        "unsupported_architecture",
        f"{nearest}{_ADVICE.get(kind, '')}{_supported(families)} "
        "Choose such a model, or try a newer version of Octavo.",
    )


_ENCODER = "an encoder: it embeds or classifies text and generates none"
_BOTH = "an encoder-decoder"
_SENSES = "it also takes images or sound"
_STATES = "it keeps a state instead of keys and values"
_NO_NEIGHBOURS = (_ENCODER, _BOTH, _STATES)
_ADVICE = {
    _SENSES: "The text part of such a checkpoint cannot be served alone either: use a checkpoint "
    "of the text model itself. ",
}


def _kind(names: Sequence[str], config: Mapping[str, Any] | None) -> str:
    """What sort of model it is, where that by itself is the reason."""
    plain = [name.lower() for name in names]
    causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
    if not causal and (_ENCODERS & {*plain, *map(_stem, names)} or _is_encoder(names)):
        return _ENCODER
    if any(name.startswith(_STATE_SPACE) for name in plain):
        return _STATES
    stems = {*plain, *map(_stem, names)}
    if stems & _SEES_OR_HEARS or any(config and config.get(key) for key in _OTHER_SENSES):
        return _SENSES
    if stems & _ENCODER_DECODERS or (config and config.get("is_encoder_decoder") is True):
        return _BOTH
    return _SENSES if any(name.endswith("ForConditionalGeneration") for name in names) else ""


def _is_encoder(names: Sequence[str]) -> bool:
    return any(name.endswith(_ENCODER_TASKS) for name in names)


def _stem(name: str) -> str:
    """ "Gemma3ForConditionalGeneration" -> "gemma3"."""
    for ending in _TASKS:
        if name.endswith(ending) and name != ending:
            name = name.removesuffix(ending)
            break
    return name.lower()


def _near(names: Sequence[str], families: Sequence[Family], gguf: bool) -> list[str]:
    """The supported architectures whose names are most like `names`, best first."""
    known: dict[str, str] = {}
    for family in families:
        name = family.gguf_architecture if gguf else family.architecture
        if name is not None:
            known.setdefault(_stem(family.architecture), name)
            known.setdefault(family.model_type.lower(), name)
            known.setdefault(_stem(name), name)
    best: dict[str, float] = {}
    for wanted in set(map(_stem, names)):
        for close in difflib.get_close_matches(wanted, known, n=3, cutoff=0.5):
            score = difflib.SequenceMatcher(a=close, b=wanted).ratio()
            best[known[close]] = max(best.get(known[close], 0.0), score)
    return sorted(best, key=lambda name: (-best[name], name))[:3]


def _supported(families: Sequence[Family]) -> str:
    names = dict.fromkeys(family.architecture for family in families)
    gguf = dict.fromkeys(f.gguf_architecture for f in families if f.gguf_architecture)
    return f"Supported are {', '.join(names)} (in GGUF: {', '.join(gguf)})."
