"""The tokenizer that the server and the library use: text to ids and back.

Owns: `Tokenizer`, a thin layer over the `tokenizers` library: BOS rules, special ids, the bytes of
each token, and the length bound.
Does not know: where it came from (hf_tokenizer, gguf_tokenizer), streaming (detokenize), or chat.

Special tokens typed by users (case D16): the text of an added token, special or not, is encoded as
that token wherever it occurs, in prompts and in message content alike. That is what transformers,
vLLM and the models' own templates expect; it means that a user can write control tokens. A service
that must not allow this filters its users' text by `special_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import tokenizers

from octavo.text.errors import TokenizerError
from octavo.text.pieces import Pieces, Spelling

_MAX_COMPOSED = 4
"""Unicode composes at most this many characters into one (NFC, e.g. U+1F82)."""


class Tokenizer:
    """Text to token ids and back, exactly as the `tokenizers` library does it.

    `prefix_ids` are put before a text by `encode` (BOS, where the model wants one); EOS is never
    appended. `named_tokens` maps the names that templates use (`bos_token`, `eos_token` ...) to
    texts. `chat_templates` maps names to Jinja sources; the usual one is "default". `eos_ids` are
    the ids that end a text according to the tokenizer's own files; a model's config may add more.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        prefix_ids: Sequence[int] = (),
        bos_id: int | None = None,
        eos_ids: Sequence[int] = (),
        named_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self.prefix_ids = tuple(prefix_ids)
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)
        self.named_tokens = dict(named_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self.pieces = Pieces.of_decoder(backend.decoder)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts BOS first."""
        return self.bos_id is not None and self.bos_id in self.prefix_ids

    @property
    def eos_id(self) -> int | None:
        return self.eos_ids[0] if self.eos_ids else None

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    @cached_property
    def vocab_size(self) -> int:
        """Number of entries, added tokens included; a model may have more rows than this."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Text of every special token -> id."""
        return {self.token_text(i): i for i in sorted(self.special_ids)}

    @cached_property
    def max_token_chars(self) -> int:
        """The most characters that one token can stand for."""
        most = 1
        for piece in sorted(self.backend.get_vocab(with_added_tokens=True), key=len, reverse=True):
            if len(piece) <= most:  # no spelling has fewer characters than it stands for
                break
            raw = self.pieces.to_bytes(piece)
            most = max(most, sum(byte & 0xC0 != 0x80 for byte in raw))
        return most

    def min_token_count(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`, at no cost: to refuse a hopelessly long
        prompt before it is tokenised (case D02). White space swallowed by added tokens that strip
        their surroundings counts as if it made tokens."""
        composes = self.backend.normalizer is not None and not text.isascii()
        return len(text) // (self.max_token_chars * (_MAX_COMPOSED if composes else 1))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. With `add_special_tokens` the model's prefix (BOS) goes first, but
        never twice: a text that spells it already keeps it as it is (case A18).

        Text rendered by a chat template is encoded with `add_special_tokens=False`: the template
        writes BOS itself where the model wants one. Raises TokenizerError for text that is not
        valid Unicode (a lone surrogate).
        """
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        except TypeError as error:  # the library's word for a str that is not valid Unicode
            at = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
            if at is None:
                raise
            raise TokenizerError(
                f"the text is not valid Unicode: a lone surrogate at character {at}"
            ) from error
        prefix = self.prefix_ids
        if not add_special_tokens or not prefix or tuple(ids[: len(prefix)]) == prefix:
            return ids
        return [*prefix, *ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`, exactly as the `tokenizers` library decodes it (case A24): no spaces
        are put around added tokens. Ids without a token (padding rows of a model) have no text."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token: int) -> bytes:
        """The raw bytes of one token, which may be a part of a character; empty for an id without
        a token."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._lookup(token)
        return known

    def token_text(self, token: int) -> str:
        """One token for display: incomplete characters show as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_id(self, text: str) -> int | None:
        """The id of the token whose vocabulary entry is `text`, or None."""
        found: int | None = self.backend.token_to_id(text)
        return found

    def _lookup(self, token: int) -> bytes:
        piece: str | None = self.backend.id_to_token(token)
        if piece is None:
            return b""
        if self.pieces.spelling is Spelling.OTHER and token not in self.special_ids:
            return self.decode([token]).encode()
        return self.pieces.to_bytes(piece)
