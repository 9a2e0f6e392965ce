"""From the `prompt` field or the messages of a request to token ids.

Owns: the forms a prompt may have, the bound before tokenising, tokenising off the loop.
Does not know: sampling, or what becomes of the ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from octavo.core.params import ParamError, check_token_id
from octavo.server.errors import ApiError
from octavo.server.sampling import check_prompt_fits
from octavo.text.errors import TokenizerError
from octavo.text.tokenizer import Tokenizer

MAX_PROMPTS = 1024
"""Prompts in one request."""
INLINE_CHARS = 4096
"""Texts up to this length are tokenised on the loop: faster than handing them to a thread."""

PromptField = str | list[int | str | list[int]]


async def prompt_ids(
    field: PromptField,
    tokenizer: Tokenizer,
    vocab_size: int,
    max_model_len: int,
    add_special_tokens: bool = True,
) -> list[list[int]]:
    """The ids of each prompt in `field`: a string, strings, ids, or lists of ids.

    Raises ApiError and ParamError, before any work that the caps would forbid.
    """
    parts = split_prompts(field)
    result = []
    for part in parts:
        if isinstance(part, str):
            ids = await encode(part, tokenizer, max_model_len, add_special_tokens)
            if not ids and tokenizer.bos_id is not None:
                ids = [tokenizer.bos_id]
        else:
            check_ids("prompt", part, vocab_size)
            ids = part
        if not ids:
            raise ParamError("prompt", "prompt is empty, and the model has no token to begin from")
        result.append(ids)
    return result


def split_prompts(field: PromptField) -> Sequence[str | list[int]]:
    """One entry a prompt."""
    if isinstance(field, str):
        return [field]
    if not field:
        raise ParamError("prompt", "prompt is an empty list")
    ids = [part for part in field if isinstance(part, int)]
    if len(ids) == len(field):
        return [ids]
    if len(field) > MAX_PROMPTS:
        raise ParamError("prompt", f"prompt has {len(field)} prompts; the limit is {MAX_PROMPTS}")
    texts = [part for part in field if isinstance(part, str)]
    if len(texts) == len(field):
        return texts
    lists = [part for part in field if isinstance(part, list)]
    if len(lists) == len(field):
        return lists
    raise ParamError("prompt", "prompt must be all strings, all token ids or all lists of ids")


async def encode(
    text: str, tokenizer: Tokenizer, max_model_len: int, add_special_tokens: bool
) -> list[int]:
    """Token ids; refuses a hopelessly long text before tokenising it (case D02)."""
    check_prompt_fits(tokenizer.min_token_count(text), None, max_model_len, at_least=True)
    try:
        if len(text) <= INLINE_CHARS:
            return tokenizer.encode(text, add_special_tokens)
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)
    except TokenizerError as error:
        raise ApiError(400, str(error), "prompt") from None


def check_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise ParamError for the first id outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        for token in ids:
            check_token_id(param, token, vocab_size)
