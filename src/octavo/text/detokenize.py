"""Token ids to text, one at a time: what a stream sends.

Owns: `Detokenizer`: which text is certain after each token.
Does not know: stop strings (stop), requests (output).

Bytes go into an incremental UTF-8 decoder, so an incomplete character waits for its rest and is
never sent as U+FFFD (case A03); only bytes that no continuation can make valid, or that the end
cuts off, become U+FFFD. The pieces concatenated equal `Tokenizer.decode` of the whole. One
exception: SentencePiece's byte tokens. The library decodes a run of them as a whole, and if any
byte of it is invalid every byte becomes U+FFFD, the valid characters before it too; a stream has
sent those long before, and so do we keep them.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from octavo.text.pieces import Spelling
from octavo.text.tokenizer import Tokenizer

_CONTEXT = 8
"""How many tokens of the prompt's end a detokenizer looks at."""
_LONE_BYTES = {0xDC00 + byte: "\ufffd" for byte in range(0x80, 0x100)}


class Detokenizer:
    """Text of a growing sequence. `prompt` is what precedes it (its end is enough): a character
    begun there is completed here, and a leading space is kept, as it is not the text's first.

    The cost of a token does not grow with the length of the sequence.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, prompt: Sequence[int] = ()
    ) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        context = [token for token in prompt[-_CONTEXT:] if token not in self._skipped]
        self._core: _Bytes | _Window
        if tokenizer.pieces.spelling is Spelling.OTHER:
            self._core = _Window(tokenizer, context)
        else:
            self._core = _Bytes(tokenizer, context)

    def push(self, ids: Iterable[int]) -> str:
        """The text that `ids` make certain."""
        core, skipped = self._core, self._skipped
        return "".join([core.push(token) for token in ids if token not in skipped])

    def finish(self) -> str:
        """What is left: U+FFFD for a character that was never completed. Ends the sequence."""
        return self._core.finish()


class _Bytes:
    """Decodes by bytes: exact for byte-level and SentencePiece vocabularies."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        pieces = tokenizer.pieces
        # The library replaces an invalid byte-level sequence as a whole, byte tokens one by one.
        errors = "surrogateescape" if pieces.byte_tokens else "replace"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)
        self._bytes = tokenizer.token_bytes
        self._strip = pieces.strips_space
        for token in context:
            self.push(token)

    def push(self, token: int) -> str:
        text = self._decoder.decode(self._bytes(token))
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        return text if text.isascii() else text.translate(_LONE_BYTES)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True).translate(_LONE_BYTES)


class _Window:
    """Decodes a window of the latest tokens twice, without and with the new one, for decoders that
    look at neighbours (the method of text-generation-inference's prefix and read offsets)."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        self._decode = tokenizer.decode
        self._sent = list(context)
        self._new: list[int] = []

    def push(self, token: int) -> str:
        self._new.append(token)
        text = self._unsent()
        if not text or text.endswith("\ufffd"):
            return ""
        self._sent, self._new = self._new, []
        return text

    def finish(self) -> str:
        text, self._new = self._unsent(), []
        return text

    def _unsent(self) -> str:
        before = self._decode(self._sent, skip_special_tokens=False)
        return self._decode(self._sent + self._new, skip_special_tokens=False)[len(before) :]
