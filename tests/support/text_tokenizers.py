"""Tokenizers for the tests of the text side: small ones made here, real ones where the data is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from octavo.model.gguf import read_metadata
from octavo.text.gguf_tokenizer import from_gguf_metadata
from octavo.text.pieces import byte_alphabet
from octavo.text.tokenizer import Tokenizer

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
WORDS = ("hello", " world", "the", " cat", "日本", "é", "\n\n", "STOP", " <", "DEF", "HI")
SPECIAL = ("<|bos|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<think>", "</think>")


def byte_level() -> Tokenizer:
    """256 single bytes, then WORDS, then ADDED (not special), then SPECIAL; BOS first."""
    chars = {byte: char for char, byte in byte_alphabet().items()}
    pieces = [bytes([b]) for b in range(256)] + [word.encode() for word in WORDS]
    vocab = {"".join(chars[b] for b in piece): i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    backend.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    bos, eos = (backend.token_to_id(text) for text in (SPECIAL[0], SPECIAL[2]))
    named = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2]}
    return Tokenizer(backend, prefix_ids=(bos,), bos_id=bos, eos_ids=(eos,), named_tokens=named)


def sentencepiece() -> Tokenizer:
    """Three special tokens, 256 byte tokens, then WORDS with and without a space before."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    names += dict.fromkeys(
        w.replace(" ", "▁") for word in WORDS for w in (word, " " + word.strip())
    )
    vocab = {name: i for i, name in enumerate(names)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")]
    )
    return Tokenizer(backend, prefix_ids=(1,), bos_id=1, eos_ids=(2,))


@cache
def gguf_tokenizer(name: str) -> Tokenizer:
    """A real tokenizer of the shared data; skips the test where it is missing."""
    file = DATA / "tokenizers" / f"ggml-vocab-{name}.gguf"
    if not file.is_file():
        pytest.skip(f"{file} is missing: the shared data is not here")
    return from_gguf_metadata(read_metadata(file))
