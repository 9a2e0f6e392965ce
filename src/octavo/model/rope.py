"""Rotary embeddings: every spelling of their configuration, reduced to frequencies and a scale.

Owns: the meaning of `rope_theta`, `rope_scaling` and `rope_parameters`; the derived context length.
Does not know: how q and k are rotated (ops).

Spellings: `rope_scaling: {"type": ...}` or `{"rope_type": ...}` or both, null, or
`rope_parameters: {..., "rope_theta": ...}`. An unknown type, or one that lacks a key, is an error
that names the key: nothing falls back to unscaled rope in silence.

Two kinds depend on the length (dynamic, longrope): they are fixed by the context that the engine is
started with, so that a token's keys never depend on how long its sequence grows.

The arithmetic follows transformers (modeling_rope_utils), step by step in float32. Sources: NTK
scaling by /u/bloc97 and /u/emozilla, YaRN (arXiv 2309.00071), LongRoPE (arXiv 2402.13753),
LLaMA 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.model.errors import ModelError
from octavo.ops import RopeSpec

Floats = NDArray[np.float32]

_SPELLINGS = {"su": "longrope", "none": "default"}
_KEYS_OF_SPELLINGS = ("rope_type", "type")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One model's rope. `parameters` are those of the kind; `max_position` is
    max_position_embeddings; `divisors` divide the frequencies one by one (GGUF `rope_freqs`)."""

    kind: str
    theta: float
    rotary_dim: int
    max_position: int
    parameters: Mapping[str, Any]
    divisors: tuple[float, ...] = ()

    def context(self) -> int:
        """The longest context the model is made for, in tokens."""
        if self.kind in ("linear", "dynamic", "yarn"):
            base = self._optional("original_max_position_embeddings") or self.max_position
            return int(base * self._number("factor"))
        return self.max_position

    def build(self, context: int) -> RopeSpec:
        """Frequencies for an engine whose sequences are at most `context` tokens long."""
        frequencies, scale = _BUILDERS[self.kind](self, context)
        if self.divisors:
            if len(self.divisors) != len(frequencies):
                raise _error(f"rope_freqs has {len(self.divisors)} entries, not {len(frequencies)}")
            frequencies /= np.asarray(self.divisors, dtype=np.float32)
        return RopeSpec(tuple(float(f) for f in frequencies), float(scale))

    def _number(self, key: str) -> float:
        value = self.parameters.get(key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
        ):
            what = "is missing" if value is None else f"is {value!r:.40}, not a positive number"
            raise _error(f"rope type {self.kind!r} needs {key!r}, which {what}")
        return float(value)

    def _optional(self, key: str) -> float | None:
        return None if self.parameters.get(key) is None else self._number(key)

    def _list(self, key: str) -> Floats:
        value = self.parameters.get(key)
        wanted = self.rotary_dim // 2
        if not isinstance(value, list | tuple) or len(value) != wanted:
            what = f"has {len(value)}" if isinstance(value, list | tuple) else "is missing"
            raise _error(f"rope type {self.kind!r} needs {key!r} with {wanted} numbers; it {what}")
        try:
            return np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            raise _error(f"{key!r} must hold numbers") from None


def parse_rope(
    config: Mapping[str, Any], head_dim: int, divisors: tuple[float, ...] = ()
) -> RopeConfig:
    """Reads the rope of a Hugging Face config (or of one made from GGUF metadata).

    Raises ModelError (code "bad_rope") naming the key that is unknown, missing or contradictory.
    """
    parameters = _parameters(config)
    kind = _kind(parameters)
    theta = parameters.get("rope_theta", config.get("rope_theta"))
    theta = 10000.0 if theta is None else theta
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < math.inf:
        raise _error(f"rope_theta is {theta!r:.40}, not a positive number")
    part = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    part = 1.0 if part is None else part
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part <= 1:
        raise _error(f"partial_rotary_factor is {part!r:.40}; it must be above 0 and at most 1")
    rotary_dim = int(head_dim * part)
    if rotary_dim < 2 or rotary_dim % 2:
        raise _error(f"the rotary part of a head has {rotary_dim} dimensions; it must be even")
    # Phi-3 keeps this one beside the rope parameters, and it has priority there.
    original = config.get("original_max_position_embeddings")
    if original is not None and kind in ("llama3", "yarn", "longrope"):
        parameters["original_max_position_embeddings"] = original
    rope = RopeConfig(
        kind, float(theta), rotary_dim, config["max_position_embeddings"], parameters, divisors
    )
    rope.build(rope.context())
    return rope


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: config.get(key) for key in ("rope_scaling", "rope_parameters")}
    for key, value in found.items():
        if value is not None and not isinstance(value, dict):
            raise _error(f"{key} is {value!r:.40}, not an object")
    scaling, parameters = found["rope_scaling"] or {}, found["rope_parameters"] or {}
    if any(isinstance(value, dict) for value in (*scaling.values(), *parameters.values())):
        raise _error("rope parameters for each layer type are not supported for this architecture")
    for key in scaling.keys() & parameters.keys():
        if scaling[key] != parameters[key]:
            raise _error(
                f"rope_scaling has {key!r} = {scaling[key]!r:.40}, "
                f"rope_parameters has {parameters[key]!r:.40}"
            )
    return {**scaling, **parameters}


def _kind(parameters: Mapping[str, Any]) -> str:
    named = {key: parameters[key] for key in _KEYS_OF_SPELLINGS if parameters.get(key) is not None}
    if not named:
        extra = sorted(parameters.keys() - {"rope_theta", "partial_rotary_factor"})
        if extra:
            raise _error(f"rope_type is missing (beside it: {', '.join(extra)})")
        return "default"
    kinds = {str(value): _SPELLINGS.get(str(value), str(value)) for value in named.values()}
    if len(set(kinds.values())) > 1:
        raise _error("rope_type and type differ: " + " and ".join(sorted(kinds)))
    kind = next(iter(kinds.values()))
    if kind not in _BUILDERS:
        raise _error(
            f"{next(iter(named))} {next(iter(kinds))!r:.40} is unknown; "
            f"supported are {', '.join(_BUILDERS)}"
        )
    return kind


def _error(what: str) -> ModelError:
    return ModelError(
        f"unusable rope configuration: {what}", "bad_rope", "Correct the model's config.json."
    )


def _powers(theta: float, dim: int) -> Floats:
    """theta ** (2i / dim): the exponent is rounded to float32 first, as torch does."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers: Floats = np.power(np.float64(theta), exponents.astype(np.float64)).astype(np.float32)
    return powers


def _default(rope: RopeConfig, context: int) -> tuple[Floats, float]:
    return 1.0 / _powers(rope.theta, rope.rotary_dim), 1.0


def _linear(rope: RopeConfig, context: int) -> tuple[Floats, float]:
    return _default(rope, context)[0] / rope._number("factor"), 1.0


def _dynamic(rope: RopeConfig, context: int) -> tuple[Floats, float]:
    factor, dim, longest = rope._number("factor"), rope.rotary_dim, rope.max_position
    if dim <= 2:
        raise _error("rope type 'dynamic' needs more than two rotary dimensions")
    stretch = factor * max(context, longest) / longest - (factor - 1)
    return 1.0 / _powers(rope.theta * stretch ** (dim / (dim - 2)), dim), 1.0


def _yarn(rope: RopeConfig, context: int) -> tuple[Floats, float]:
    factor = rope._number("factor")
    original = rope._number("original_max_position_embeddings")
    dim, theta = rope.rotary_dim, rope.theta

    def turning(rotations: float) -> float:
        """The (fractional) dimension that turns `rotations` times within the original length."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = turning(rope._optional("beta_fast") or 32.0)
    high = turning(rope._optional("beta_slow") or 1.0)
    if rope.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / span, 0, 1)
    keep = 1 - ramp
    powers = _powers(theta, dim)
    mixed = 1.0 / (factor * powers) * (1 - keep) + 1.0 / powers * keep
    return mixed, _yarn_scale(rope, factor)


def _yarn_scale(rope: RopeConfig, factor: float) -> float:
    given = rope._optional("attention_factor")
    if given is not None:
        return given

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, weight_all = (rope.parameters.get(key) for key in ("mscale", "mscale_all_dim"))
    if weight and weight_all:
        return mscale(float(weight)) / mscale(float(weight_all))
    return mscale(1.0)


def _llama3(rope: RopeConfig, context: int) -> tuple[Floats, float]:
    factor = rope._number("factor")
    low, high = rope._number("low_freq_factor"), rope._number("high_freq_factor")
    original = rope._number("original_max_position_embeddings")
    if high <= low:
        raise _error(f"high_freq_factor ({high}) must be greater than low_freq_factor ({low})")
    plain = _default(rope, context)[0]
    length = 2 * math.pi / plain
    smooth = (original / length - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    scaled = np.where(length > original / low, plain / factor, plain)
    medium = (length >= original / high) & (length <= original / low)
    return np.where(medium, between, scaled), 1.0


def _longrope(rope: RopeConfig, context: int) -> tuple[Floats, float]:
    original = rope._number("original_max_position_embeddings")
    long, short = rope._list("long_factor"), rope._list("short_factor")
    factor = rope._optional("factor") or rope.max_position / original
    scale = rope._optional("attention_factor")
    if scale is None:
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    chosen = long if context > original else short
    return 1.0 / (chosen * _powers(rope.theta, rope.rotary_dim)), scale


_BUILDERS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
