"""The byte-level tokenizer of the tiny models: 256 bytes, pieces of a script, filler, specials.

Owns: the vocabulary and its files (tokenizer.json, tokenizer_config.json).
Does not know: models.

Ids: 0 to 255 are the bytes themselves; then the script's pieces; then filler syllables; the last
eight are added tokens (BOS ... EOS below). There are no merges: a pre-token that is in the
vocabulary as a whole is one token, any other falls apart into bytes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 512
SPECIALS = ("<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|eos|>")
ADDED = ("<tool_call>", "</tool_call>")
"""Added tokens that are not special: they are part of the text."""
TOOL_CALL, TOOL_CALL_END = VOCAB - 8, VOCAB - 7
BOS, SYSTEM, USER, ASSISTANT, END, EOS = range(VOCAB - 6, VOCAB)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class TinyTokenizer:
    """`pieces` get ids from 256 on."""

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        words = [bytes([b]) for b in range(256)] + list(pieces)
        room = VOCAB - len(SPECIALS) - len(ADDED)
        if len(words) > room:
            raise ValueError(f"{len(words)} pieces do not fit a vocabulary of {room}")
        filler = (s for s in _syllables() if s not in words)
        self.words = [*words, *itertools.islice(filler, room - len(words))]

    @classmethod
    def with_script(
        cls, script: str | Sequence[str | bytes | int]
    ) -> tuple[TinyTokenizer, list[int]]:
        """A tokenizer that has the script's pieces, and the script as ids."""
        parts: Sequence[str | bytes | int] = cut(script) if isinstance(script, str) else script
        if not parts:
            raise ValueError("an empty script")
        plain = [p.encode() if isinstance(p, str) else p for p in parts]
        named = {t.encode(): VOCAB - 8 + i for i, t in enumerate((*ADDED, *SPECIALS))}
        pieces = [p for p in plain if isinstance(p, bytes) and len(p) > 1 and p not in named]
        where = {piece: 256 + i for i, piece in enumerate(pieces)}
        ids = [
            p if isinstance(p, int) else named.get(p, p[0] if len(p) == 1 else where.get(p, -1))
            for p in plain
        ]
        if len(set(ids)) != len(ids):
            raise ValueError(f"a token comes twice in the script {script!r}: cut it otherwise")
        return cls(pieces), ids

    def build(self) -> Tokenizer:
        vocab = {"".join(_BYTE_CHARS[b] for b in word): i for i, word in enumerate(self.words)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ADDED])
        tokenizer.add_special_tokens(
            [AddedToken(t, special=True, normalized=False) for t in SPECIALS]
        )
        return tokenizer

    def write(self, directory: Path, bos: bool) -> None:
        self.build().save(str(directory / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|bos|>" if bos else None,
            "eos_token": "<|eos|>",
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        }
        (directory / "tokenizer_config.json").write_text(json.dumps(config))


def cut(text: str) -> list[bytes]:
    """Cut into single bytes, longer where a piece would come twice; no piece comes twice."""
    data = text.encode()
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 1
        while end < len(data) and data[at:end] in pieces:
            end += 1
        piece = data[at:end]
        while piece in pieces:  # nothing is left to lengthen it with: take from before
            piece = pieces.pop() + piece
        pieces.append(piece)
        at = end
    return pieces


def _syllables() -> list[bytes]:
    letters = itertools.product((" ", ""), "tnsrhdlmc", "aeiou", ("n", "r", ""))
    return ["".join(parts).encode() for parts in letters]


def _byte_chars() -> list[str]:
    """GPT-2's table: each byte as a printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in printable}
    others = (b for b in range(256) if b not in table)
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return [table[b] for b in range(256)]


_BYTE_CHARS = _byte_chars()
