"""From a request's fields to SamplingParams, with the model's defaults and the context's bounds.

Owns: the precedence of defaults, conversions of OpenAI's spellings, the context rules.
Does not know: prompts' texts, streams. Ranges are checked by `core.params`.

Precedence: what the request says, then the model's generation_config, then the built-in default.
`max_completion_tokens` goes before `max_tokens`. Context (case A23): a prompt that fills the
context, and a prompt that with its max_tokens exceeds it, are refused, never cut; without
max_tokens a request may use what remains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from octavo.core.params import Caps, ParamError, SamplingParams
from octavo.server.body import decode_field
from octavo.server.errors import ApiError
from octavo.server.types import SamplingFields

_PLAIN = frozenset(field.name for field in fields(SamplingParams)) - {
    "stop", "stop_token_ids", "logit_bias", "logprobs",
}  # fmt: skip
_BIAS_BYTES = 64
"""More than one entry of logit_bias needs in JSON."""
_PRIORITY_LIMIT = 2**31
TIMEOUT_HEADER = "x-request-timeout"
MAX_TIMEOUT = 86400
"""Seconds."""


def sampling_params(
    body: SamplingFields,
    defaults: Mapping[str, Any],
    vocab_size: int,
    caps: Caps,
    **overrides: Any,
) -> SamplingParams:
    """Validated parameters of `body`; `overrides` are values that a route worked out itself.

    Raises ParamError. Nothing here costs more than the caps allow.
    """
    values: dict[str, Any] = {k: v for k, v in defaults.items() if k in _PLAIN}
    for name in _PLAIN:
        value = getattr(body, name, None)
        if value is not None:
            values[name] = value
    if body.stop is not None:
        values["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.stop_token_ids is not None:
        values["stop_token_ids"] = tuple(body.stop_token_ids)
    limit = caps.max_logit_bias * _BIAS_BYTES
    if bias := decode_field(body.logit_bias, dict[str, float], "logit_bias", limit):
        values["logit_bias"] = _logit_bias(bias)
    values.update(overrides)
    if values.get("top_k", 0) > vocab_size:
        values["top_k"] = 0  # more than there are: no limit at all
    params = SamplingParams(**values)
    params.validate(vocab_size, caps)
    return params


def priority_of(body: SamplingFields) -> int:
    """Lower goes first within the class; without effect under the FCFS policy."""
    priority = body.priority or 0
    if not -_PRIORITY_LIMIT <= priority < _PRIORITY_LIMIT:
        raise ParamError("priority", "priority must fit 32 bits")
    return priority


def timeout_of(body: SamplingFields, headers: Mapping[str, str]) -> float | None:
    """Seconds from arrival in which the answer has to be complete: the field `timeout` or the
    header X-Request-Timeout (which a proxy may set), the shorter of the two. Raises ParamError."""
    given = []
    if body.timeout is not None:
        given.append(("timeout", body.timeout))
    if (text := headers.get(TIMEOUT_HEADER)) is not None:
        try:
            given.append((TIMEOUT_HEADER, float(text)))
        except ValueError:
            raise ParamError(
                TIMEOUT_HEADER, f"{TIMEOUT_HEADER} must be a number of seconds, not {text!r:.40}"
            ) from None
    for name, seconds in given:
        if not 0 < seconds <= MAX_TIMEOUT:  # nan is refused here, too
            raise ParamError(
                name, f"{name} is {seconds:g}; it must be above 0 and at most {MAX_TIMEOUT} seconds"
            )
    return min((seconds for _, seconds in given), default=None)


def fit_context(params: SamplingParams, prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """`params` with max_tokens set. Raises ApiError(400, code context_length_exceeded)."""
    check_prompt_fits(prompt_tokens, params.max_tokens, max_model_len)
    remaining = max_model_len - prompt_tokens
    if params.max_tokens is not None:
        return params
    if params.min_tokens > remaining:
        raise ParamError(
            "min_tokens",
            f"min_tokens ({params.min_tokens}) exceeds the {remaining} tokens that remain",
        )
    return replace(params, max_tokens=remaining)


def check_prompt_fits(
    prompt_tokens: int, max_tokens: int | None, max_model_len: int, at_least: bool = False
) -> None:
    """`at_least`: `prompt_tokens` is a lower bound, from before tokenising."""
    asked = max_tokens or 0
    if prompt_tokens < max_model_len and prompt_tokens + asked <= max_model_len:
        return
    count = f"at least {prompt_tokens}" if at_least else f"{prompt_tokens}"
    wish = "no limit on the output" if max_tokens is None else f"{max_tokens} output tokens"
    raise ApiError(
        400,
        f"The context holds {max_model_len} tokens; this request has {count} prompt tokens and "
        f"asks for {wish}. Shorten the prompt or lower max_tokens.",
        code="context_length_exceeded",
    )


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    """JSON's keys are strings."""
    result = {}
    for key, value in bias.items():
        if not (key.isascii() and key.removeprefix("-").isdigit() and len(key) < 20):
            raise ParamError("logit_bias", f"logit_bias keys must be token ids, not {key!r:.40}")
        result[int(key)] = value
    return result
