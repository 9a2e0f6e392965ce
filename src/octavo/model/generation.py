"""Defaults that a model brings for sampling, under the names of SamplingParams.

Owns: the mapping from generation_config.json and from GGUF's `general.sampling.*`.
Does not know: requests, which come before these defaults, or the ranges of parameters
(core.params).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from octavo.model.errors import ModelError

_HF_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
_GGUF_NAMES = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_INTEGERS = {"top_k"}


def from_generation_config(config: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """SamplingParams names -> values. Keys without a counterpart are ignored, null is absent.

    `do_sample: false` is temperature 0. Raises ModelError (code "bad_config") for a value that is
    not a number. Lengths (max_new_tokens) are left out: they would cut answers in silence.
    """
    defaults = _pick(config, _HF_NAMES, origin)
    sample = config.get("do_sample")
    if sample is not None and not isinstance(sample, bool):
        raise ModelError(f"{origin}: do_sample is {sample!r:.40}, not true or false", "bad_config")
    if sample is False:
        defaults["temperature"] = 0.0
    return defaults


def from_gguf(metadata: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The same from `general.sampling.*` (present in files of late 2025 and after)."""
    prefix = "general.sampling."
    values = {key.removeprefix(prefix): v for key, v in metadata.items() if key.startswith(prefix)}
    return _pick(values, _GGUF_NAMES, origin)


def _pick(values: Mapping[str, Any], names: Mapping[str, str], origin: str) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for key, name in names.items():
        value = values.get(key)
        if value is None:
            continue
        number = not isinstance(value, bool) and isinstance(value, int | float)
        if not number or not math.isfinite(value):
            raise ModelError(f"{origin}: {key} is {value!r:.40}, not a number", "bad_config")
        picked[name] = int(value) if name in _INTEGERS else float(value)
    return picked


def token_ids(value: object, key: str, origin: str) -> tuple[int, ...]:
    """An id, a list of ids or null, as a tuple; ModelError (code "bad_config") otherwise."""
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ModelError(f"{origin}: {key} is {value!r:.60}, not token ids", "bad_config")
    return tuple(ids)


def union(groups: Iterable[Iterable[int]], vocab_size: int) -> tuple[int, ...]:
    """All ids that have a row in the embedding, each once, ascending."""
    return tuple(sorted({i for group in groups for i in group if i < vocab_size}))
