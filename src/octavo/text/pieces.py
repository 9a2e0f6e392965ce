"""The bytes that a token stands for: the inverse of how a vocabulary spells its pieces.

Owns: the spellings in use (byte-level alphabet, SentencePiece with byte tokens) and which of them a
decoder of the `tokenizers` library means.
Does not know: ids, special tokens, or streaming (detokenize).

A decoder of either spelling is a concatenation of bytes followed by one UTF-8 decoding, which is
what makes decoding token by token exact and of constant cost. Other decoders (WordPiece, BPE with
word-end suffixes) look at neighbours; they are spelt OTHER and are decoded in windows of tokens.
"""

from __future__ import annotations

import enum
import json
import re
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_META_SPACE = "\u2581"


class Spelling(enum.Enum):
    """How a vocabulary writes its pieces."""

    BYTE_LEVEL = "byte-level"
    SENTENCEPIECE = "sentencepiece"
    OTHER = "other"


def byte_alphabet() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: character -> byte. Printable Latin-1 stands for itself,
    every other byte for a character from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


class Pieces:
    """Turns a vocabulary's piece into its bytes.

    `strips_space`: one leading space of a whole decoded text is not part of it (SentencePiece puts
    one before every text). `byte_tokens`: pieces like `<0xE6>` are single bytes.
    """

    def __init__(
        self, spelling: Spelling, strips_space: bool = False, byte_tokens: bool = False
    ) -> None:
        self.spelling = spelling
        self.strips_space = strips_space
        self.byte_tokens = byte_tokens
        self._alphabet = byte_alphabet() if spelling is Spelling.BYTE_LEVEL else {}

    @classmethod
    def of_decoder(cls, decoder: Any) -> Pieces:
        """The spelling that a decoder object of the `tokenizers` library undoes."""
        if decoder is None:
            return cls(Spelling.OTHER)
        state = json.loads(decoder.__getstate__())
        steps = state["decoders"] if state["type"] == "Sequence" else [state]
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return cls(Spelling.BYTE_LEVEL)
        if kinds == ["Metaspace"] and steps[0]["replacement"] == _META_SPACE:
            prepends = steps[0].get("prepend_scheme", "always") != "never"
            return cls(Spelling.SENTENCEPIECE, strips_space=prepends)
        if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _replaces_space(steps[0]):
            if kinds[3:] == []:
                return cls(Spelling.SENTENCEPIECE, byte_tokens=True)
            strip = steps[3]
            if kinds[3:] == ["Strip"] and (strip["content"], strip["start"]) == (" ", 1):
                return cls(Spelling.SENTENCEPIECE, strips_space=True, byte_tokens=True)
        return cls(Spelling.OTHER)

    def to_bytes(self, piece: str) -> bytes:
        """The raw bytes of one piece; for OTHER the piece itself in UTF-8."""
        if self.spelling is Spelling.BYTE_LEVEL:
            try:
                return bytes([self._alphabet[char] for char in piece])
            except KeyError:  # an added token: written as plain text, not in the alphabet
                return piece.encode()
        if self.byte_tokens and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        if self.spelling is Spelling.SENTENCEPIECE:
            return piece.replace(_META_SPACE, " ").encode()
        return piece.encode()


def _replaces_space(step: dict[str, Any]) -> bool:
    pattern, content = step["pattern"], step["content"]
    return bool(pattern == {"String": _META_SPACE} and content == " ")
