"""Logprobs in OpenAI's two schemas: one for chat, one for completions.

Owns: the structs, the spelling of tokens in them, and the rule for what is not finite.
Does not know: where the numbers come from. They are those of the model's raw logits, before
penalties, bias and temperature.

JSON has no infinity: whatever is not finite or below -9999 is written as -9999.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from octavo.core.plan import TokenLogprob
from octavo.text.output import ScoredToken, TokenText, score_token
from octavo.text.tokenizer import Tokenizer

FLOOR = -9999.0


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    """`token` shows incomplete characters as U+FFFD; `bytes` are the token's own."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """Lists of equal length. Tokens that are not valid UTF-8 by themselves are spelt
    `bytes:\\xf0\\x9f`, so that different ones stay apart. `text_offset` counts characters in the
    choice's text (from its beginning also in a stream)."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def extend(self, other: CompletionLogprobs) -> None:
        """Puts what follows in the same choice behind."""
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptPosition = dict[str, PromptLogprob] | None


def finite(logprob: float) -> float:
    """-9999.0 for -inf and NaN too (NaN compares false)."""
    return logprob if logprob > FLOOR else FLOOR


def chat_logprobs(entries: Iterable[ScoredToken], top: int) -> ChatLogprobs:
    """`top`: how many alternatives the client asked for."""
    return ChatLogprobs(
        [
            ChatTokenLogprob(
                entry.text,
                finite(entry.logprob),
                list(entry.raw),
                [
                    TopLogprob(other.text, finite(other.logprob), list(other.raw))
                    for other in entry.top[:top]
                ],
            )
            for entry in entries
        ]
    )


def completion_logprobs(
    entries: Iterable[ScoredToken], top: int, offset: int = 0
) -> CompletionLogprobs:
    """`offset`: characters of an echoed prompt before the choice's own text."""
    result = CompletionLogprobs([], [], [], [])
    for entry in entries:
        _add(result, entry, top, offset + entry.text_offset)
    return result


def echoed_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], entries: Sequence[TokenLogprob], top: int
) -> CompletionLogprobs:
    """Of a prompt: `entries[i]` tells of token i + 1, the first token has none (null).

    The offset of a token is where its first character begins; special tokens have no width.
    """
    result = CompletionLogprobs([], [], [], [])
    offset = 0
    for index, token in enumerate(ids):
        raw = tokenizer.token_bytes(token)
        if index == 0:
            result.tokens.append(_spell(raw))
            result.token_logprobs.append(None)
            result.top_logprobs.append(None)
            result.text_offset.append(0)
        else:
            _add(result, score_token(tokenizer, entries[index - 1]), top, offset)
        if token not in tokenizer.special_ids:
            offset += sum(byte & 0xC0 != 0x80 for byte in raw)  # bytes that begin a character
    return result


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprob], top: int
) -> list[PromptPosition]:
    """vLLM's own form: null for the first token, then per position {token id: PromptLogprob} of the
    prompt's token and the `top` most likely ones."""
    result: list[PromptPosition] = [None]
    for entry in entries:
        position = {
            str(token): PromptLogprob(finite(logprob), rank, tokenizer.token_text(token))
            for rank, (token, logprob) in enumerate(entry.top[:top], 1)
        }
        own = PromptLogprob(finite(entry.logprob), entry.rank, tokenizer.token_text(entry.token))
        position[str(entry.token)] = own
        result.append(position)
    return result


def _add(result: CompletionLogprobs, entry: ScoredToken, top: int, offset: int) -> None:
    """The sampled token is among its alternatives even where it is not one of the most likely."""
    result.tokens.append(_spell(entry.raw))
    result.token_logprobs.append(finite(entry.logprob))
    result.text_offset.append(offset)
    alternatives: Sequence[TokenText] = (*entry.top[:top], entry)
    result.top_logprobs.append({_spell(one.raw): finite(one.logprob) for one in alternatives})


def _spell(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
