"""One choice's text while it is generated: tokens in, text to send out.

Owns: `ChoiceText`: detokenising, stop strings, what the last token contributes, and the text and
bytes of logprobs.
Does not know: the engine (the caller aborts it when told), sockets, or response formats.

The text depends on the tokens alone, not on how many arrive at once, so that a replay after a crash
gives what was sent before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.core.params import SamplingParams
from octavo.core.plan import TokenLogprob
from octavo.core.request import FinishReason, Output
from octavo.text.detokenize import Detokenizer
from octavo.text.stop import StopStrings
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token with its logprob, as clients see it. `raw` are its true bytes, possibly a part of a
    character; `text` shows them with U+FFFD in place of what is incomplete."""

    token: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class ScoredToken(TokenText):
    """A sampled (or prompt) token. `top` holds the most likely alternatives, best first;
    `text_offset` is where its text begins, in characters of the choice's decoded text."""

    rank: int = 0
    top: tuple[TokenText, ...] = ()
    text_offset: int = 0


@dataclass(slots=True)
class TextDelta:
    """What one output adds. `text` may be empty while `tokens` are not (an incomplete character,
    or what may begin a stop string).

    `tokens` are those that count; ones sampled beyond a stop string are dropped. `stop_reason` is
    the stop string or token id that ended the text, None for EOS. `abort`: a stop string ended it
    while the engine is still generating, so the caller must abort this choice there.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[ScoredToken] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    abort: bool = False


class ChoiceText:
    """The text of one choice of a request, `prompt` being the ids before it.

    - A stop string ends the text before it (after it with `include_stop_str_in_output`). Among the
      first `min_tokens` tokens none is looked for.
    - A stop string that is the text of a special token matches that token even where special tokens
      are not printed (case A24).
    - The token with which the engine stopped (EOS, a stop token id) has no text of its own, unless
      `include_stop_str_in_output`.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, prompt: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens, prompt)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self._chars = 0
        self.token_count = 0
        """Tokens that count towards usage."""
        self.finish_reason: FinishReason | None = None

    def push(self, output: Output) -> TextDelta:
        """Takes what the engine reports for this choice. After the end everything is ignored."""
        delta = TextDelta()
        if self.finish_reason is not None:
            return delta
        if output.logprobs is not None:
            delta.logprobs = []
        parts: list[str] = []
        stopped = output.finish_reason is FinishReason.STOP
        for i, token in enumerate(output.tokens):
            ends = stopped and i == len(output.tokens) - 1
            delta.tokens.append(token)
            if delta.logprobs is not None and output.logprobs is not None:
                scored = score_token(self._tokenizer, output.logprobs[i], self._chars)
                delta.logprobs.append(scored)
            text, stop = self._take(token, ends)
            parts.append(text)
            if stop is not None:
                delta.finish_reason, delta.stop_reason = FinishReason.STOP, stop
                delta.abort = output.finish_reason is None
                break
        if delta.finish_reason is None and output.finish_reason is not None:
            parts.append(self._flush(delta, output))
        self.finish_reason = delta.finish_reason
        delta.text = "".join(parts)
        return delta

    def _take(self, token: int, ends: bool) -> tuple[str, str | None]:
        """(text to send, the stop string that is complete) for one more token. `ends`: the engine
        stopped because of it."""
        params = self._params
        self.token_count += 1
        armed = self.token_count > params.min_tokens
        if params.skip_special_tokens and token in self._tokenizer.special_ids:
            text = self._tokenizer.token_text(token)
            if armed and text in params.stop:
                held = self._stops.finish()
                return held + (text if params.include_stop_str_in_output else ""), text
        if ends and not params.include_stop_str_in_output:
            return "", None
        text = self._detokenizer.push((token,))
        self._chars += len(text)
        return self._stops.push(text, armed)

    def _flush(self, delta: TextDelta, output: Output) -> str:
        """The engine ended the choice: what was held back is certain now."""
        armed = self.token_count > self._params.min_tokens
        text, stop = self._stops.push(self._detokenizer.finish(), armed)
        delta.finish_reason, delta.stop_reason = output.finish_reason, output.stop_reason
        if stop is not None:
            delta.finish_reason, delta.stop_reason = FinishReason.STOP, stop
        return text + self._stops.finish()


def score_token(tokenizer: Tokenizer, entry: TokenLogprob, text_offset: int = 0) -> ScoredToken:
    """An engine's logprob entry with texts and bytes (also for prompt logprobs)."""
    return ScoredToken(
        token=entry.token,
        text=tokenizer.token_text(entry.token),
        raw=tokenizer.token_bytes(entry.token),
        logprob=entry.logprob,
        rank=entry.rank,
        top=tuple(
            TokenText(token, tokenizer.token_text(token), tokenizer.token_bytes(token), logprob)
            for token, logprob in entry.top
        ),
        text_offset=text_offset,
    )
