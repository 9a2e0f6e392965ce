"""/tokenize and /detokenize: the model's tokenizer as a service.

Owns: those two routes.
Does not know: generation.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from octavo.core.params import ParamError
from octavo.server.body import json_response, read_body, warn_unknown
from octavo.server.messages import chat_prompt
from octavo.server.probes import serving_of
from octavo.server.prompts import check_ids, encode
from octavo.server.types import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

MAX_DETOKENIZE = 1 << 20


async def tokenize(request: Request) -> Response:
    """The ids that a prompt, or the rendered messages, have as a request's prompt."""
    serving = serving_of(request)
    body, unknown = await read_body(request, TokenizeRequest)
    serving.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ParamError("prompt", "give either prompt or messages")
    # A text beyond the context is refused as in a request, only with room for a full context.
    limit = serving.max_model_len + 1
    if body.messages is not None:
        ids = await chat_prompt(serving, body.messages, body)
    else:
        special = body.add_special_tokens is not False
        ids = await encode(body.prompt or "", serving.tokenizer, limit, special)
    strings = [serving.tokenizer.token_text(token) for token in ids]
    response = json_response(
        TokenizeResponse(
            len(ids), serving.max_model_len, ids, strings if body.return_token_strs else None
        )
    )
    warn_unknown(response, unknown, TokenizeRequest)
    return response


async def detokenize(request: Request) -> Response:
    serving = serving_of(request)
    body, unknown = await read_body(request, DetokenizeRequest)
    serving.check_model(body.model)
    if len(body.tokens) > MAX_DETOKENIZE:
        raise ParamError("tokens", f"tokens has {len(body.tokens)}; the limit is {MAX_DETOKENIZE}")
    check_ids("tokens", body.tokens, serving.vocab_size)
    text = await asyncio.to_thread(serving.tokenizer.decode, body.tokens, False)
    response = json_response(DetokenizeResponse(text))
    warn_unknown(response, unknown, DetokenizeRequest)
    return response
