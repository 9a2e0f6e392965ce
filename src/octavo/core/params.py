"""Sampling parameters and their validation: the one place for the server and the library.

Owns: the names, defaults, ranges and caps of everything a client may ask of one request.
Does not know: HTTP, tokenizers, or how a backend samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MAX_SEED = 2**63 - 1


class ParamError(ValueError):
    """A parameter is out of range. `param` names the field as the client spelt it."""

    def __init__(self, param: str, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper limits on what one request may ask, so that a small body cannot mean huge work."""

    max_n: int = 128
    max_logprobs: int = 20
    max_stop: int = 16
    max_stop_chars: int = 1024
    max_stop_token_ids: int = 128
    max_logit_bias: int = 1024


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Field names and meanings are those of OpenAI and vLLM.

    `temperature` 0 (or `top_k` 1, or `top_p` 0) is greedy. `top_k` 0 or -1 is off. `logprobs` is
    the number of alternatives beside the sampled token (0: the sampled token only, None: off);
    logprobs are those of the model's raw logits, before penalties, bias and temperature.
    `max_tokens` None means up to the context's end. `seed` None is replaced at submission by a
    random one.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1 or self.top_p == 0.0

    @property
    def choices(self) -> int:
        """How many sequences are generated (best_of, or n)."""
        return self.n if self.best_of is None else self.best_of

    @property
    def wants_logprob(self) -> bool:
        """Whether the engine must report the sampled token's logprob."""
        return self.logprobs is not None or self.choices > self.n

    def validate(self, vocab_size: int, caps: Caps = Caps()) -> None:
        """Raise ParamError for the first field out of range. `vocab_size` bounds token ids."""
        _integer("n", self.n, 1, caps.max_n)
        if self.best_of is not None:
            _integer("best_of", self.best_of, 1, caps.max_n)
            if self.best_of < self.n:
                raise ParamError(
                    "best_of", f"best_of ({self.best_of}) must be at least n ({self.n})"
                )
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, -1, None)
        _number("top_p", self.top_p, 0.0, 1.0)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 0, None)
        _integer("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParamError(
                "min_tokens",
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _integer(name, value, 0, caps.max_logprobs)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ParamError(name, f"{name} must be true or false")
        self._validate_stops(vocab_size, caps)
        self._validate_bias(vocab_size, caps)

    def _validate_stops(self, vocab_size: int, caps: Caps) -> None:
        if isinstance(self.stop, str):
            raise ParamError("stop", "stop must be a tuple of strings, not one string")
        if len(self.stop) > caps.max_stop:
            raise ParamError(
                "stop", f"stop has {len(self.stop)} strings; the limit is {caps.max_stop}"
            )
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ParamError("stop", "stop must be non-empty strings")
            if len(text) > caps.max_stop_chars:
                raise ParamError(
                    "stop",
                    f"a stop string has {len(text)} characters; the limit is {caps.max_stop_chars}",
                )
        if len(self.stop_token_ids) > caps.max_stop_token_ids:
            raise ParamError(
                "stop_token_ids",
                f"stop_token_ids has {len(self.stop_token_ids)} ids; "
                f"the limit is {caps.max_stop_token_ids}",
            )
        for token in self.stop_token_ids:
            check_token_id("stop_token_ids", token, vocab_size)

    def _validate_bias(self, vocab_size: int, caps: Caps) -> None:
        if len(self.logit_bias) > caps.max_logit_bias:
            raise ParamError(
                "logit_bias",
                f"logit_bias has {len(self.logit_bias)} entries; "
                f"the limit is {caps.max_logit_bias}",
            )
        for token, bias in self.logit_bias.items():
            check_token_id("logit_bias", token, vocab_size)
            _number("logit_bias", bias, -100.0, 100.0)


def check_token_id(param: str, token: object, vocab_size: int) -> None:
    """Raise ParamError unless `token` is an int (not bool) in [0, vocab_size)."""
    if isinstance(token, bool) or not isinstance(token, int):
        raise ParamError(param, f"{param} must hold integer token ids, not {token!r:.40}")
    if not 0 <= token < vocab_size:
        raise ParamError(
            param, f"token id {token} in {param} is outside the vocabulary (0 to {vocab_size - 1})"
        )


def _integer(name: str, value: object, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParamError(name, f"{name} must be an integer, not {value!r:.40}")
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ParamError(name, f"{name} is {value!r:.40}; it must be {limit}")


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParamError(name, f"{name} must be a number, not {value!r:.40}")
    if not math.isfinite(value) or value < low or value > high:
        raise ParamError(name, f"{name} is {value!r:.40}; it must be between {low} and {high}")
