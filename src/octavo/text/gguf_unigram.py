"""SentencePiece's unigram model, from a GGUF file's scores.

Owns: its pieces, its normalisation (charsmap, white space) and its decoder.
Does not know: other kinds of tokenizers, special tokens (gguf_tokenizer).

The most probable cut of a text wins, by the sum of the pieces' scores; llama.cpp calls it UGM and
GGUF "t5". What `tokenizers` does with it is what transformers' T5 conversion makes of the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from octavo.text.errors import TokenizerError
from octavo.text.gguf_keys import Keys

_META_SPACE = "\u2581"
_UNKNOWN, _BYTE = 2, 6
"""Values of tokenizer.ggml.token_type."""


def unigram(ggml: Keys, tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """Raises TokenizerError where the scores, or the map of characters, cannot be used."""
    scores = ggml.list_of("scores", len(tokens))
    unknown = ggml.id("unknown_token_id", len(tokens))
    if unknown is None:
        unknown = next((i for i, kind in enumerate(types) if kind == _UNKNOWN), None)
    pieces = [(token, float(score)) for token, score in zip(tokens, scores, strict=True)]
    fallback = any(kind == _BYTE for kind in types)
    try:
        backend = tokenizers.Tokenizer(models.Unigram(pieces, unknown, fallback))
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(f"the GGUF file's unigram vocabulary is unusable: {error}") from error
    steps = _normalizers(ggml)
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    scheme: Any = "always" if ggml.flag("add_space_prefix", True) else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_META_SPACE, scheme)
    last = decoders.Metaspace(_META_SPACE, scheme)
    if fallback:
        backend.decoder = decoders.Sequence(_byte_decoder(scheme == "always"))
    else:
        backend.decoder = last
    return backend


def _normalizers(ggml: Keys) -> list[Any]:
    steps: list[Any] = []
    charsmap = ggml.optional("precompiled_charsmap")
    if charsmap:
        try:
            data = bytes(value & 0xFF for value in charsmap)
            steps.append(normalizers.Precompiled(data))
        except Exception as error:  # what is no list of numbers, or no map
            raise TokenizerError(
                f"tokenizer.ggml.precompiled_charsmap cannot be read: {error}"
            ) from error
    if ggml.flag("remove_extra_whitespaces", False):
        steps += [
            normalizers.Strip(left=True, right=True),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    return steps


def _byte_decoder(prefix: bool) -> list[Any]:
    """With byte tokens, spaces and bytes are put together before the text is decoded."""
    steps: list[Any] = [
        decoders.Replace(_META_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    return [*steps, decoders.Strip(" ", 1, 0)] if prefix else steps
