"""SentencePiece tokenizers from GGUF metadata equal the same ones of the `tokenizers` library."""

from __future__ import annotations

import json
import struct
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from octavo.text.detokenize import Detokenizer
from octavo.text.errors import TokenizerError
from octavo.text.gguf_tokenizer import from_gguf_metadata
from support.text_tokenizers import gguf_tokenizer

WORDS = "the cat sat on a mat and the other cats ate what was there 日本 語 naïve café 12 345 ! ?"
TEXTS = st.text(st.sampled_from([*WORDS, " ", "\n", "😀", "x"]), max_size=60)


@cache
def trained() -> tokenizers.Tokenizer:
    """A unigram model of a few dozen pieces, trained here."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "always")
    backend.decoder = decoders.Metaspace("\u2581", "always")
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"
    )
    words = WORDS.split()
    texts = [" ".join(words[i:] + words[:i]) for i in range(len(words))]
    backend.train_from_iterator(texts, trainer)
    return backend


def metadata(**changes: Any) -> dict[str, Any]:
    """The trained model as GGUF says it; byte tokens at the end if `bytes` is given."""
    pieces = json.loads(trained().to_str())["model"]["vocab"]
    tokens, scores = [p for p, _ in pieces], [float(s) for _, s in pieces]
    types = [{"<pad>": 3, "</s>": 3, "<unk>": 2}.get(token, 1) for token in tokens]
    if changes.pop("with_bytes", False):
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        scores += [0.0] * 256
        types += [6] * 256
    found = {
        "general.architecture": "t5",
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }
    return {**found, **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}}


def test_e05_unigram_cuts_as_the_library_does() -> None:
    ours, theirs = from_gguf_metadata(metadata()), trained()

    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    def same(text: str) -> None:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == theirs.decode(ids)

    same()
    assert len(ours.encode("the cat sat on a mat")) < 15, "not letter by letter"


def test_unigram_needs_no_bos_and_knows_its_ends() -> None:
    tokenizer = from_gguf_metadata(metadata())
    assert tokenizer.prefix_ids == () and tokenizer.eos_ids == (1,)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.encode("cat</s>")[-1] == 1
    assert tokenizer.named_tokens["pad_token"] == "<pad>"


def test_unigram_without_a_space_before() -> None:
    tokenizer = from_gguf_metadata(metadata(add_space_prefix=False))
    theirs = tokenizers.Tokenizer.from_str(trained().to_str())
    theirs.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "never")
    theirs.decoder = decoders.Metaspace("\u2581", "never")
    for text in ("cat", " cat", "the cat"):
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("cat") != tokenizer.encode(" cat")


def test_unigram_takes_extra_spaces_out_where_the_file_says_so() -> None:
    kept, taken = (
        from_gguf_metadata(metadata(remove_extra_whitespaces=flag)) for flag in (False, True)
    )
    assert taken.encode("  the   cat ") == taken.encode("the cat")
    assert kept.encode("  the   cat ") != kept.encode("the cat")


def test_unigram_falls_back_to_bytes_and_back() -> None:
    plain, with_bytes = (
        from_gguf_metadata(metadata()),
        from_gguf_metadata(metadata(with_bytes=True)),
    )
    text = "the 😀 cat"
    assert 2 in plain.encode(text)
    ids = with_bytes.encode(text)
    assert 2 not in ids
    assert with_bytes.decode(ids) == text
    detokenizer = Detokenizer(with_bytes)
    streamed = "".join(detokenizer.push([token]) for token in ids) + detokenizer.finish()
    assert streamed == text
    assert b"".join(map(with_bytes.token_bytes, ids)).decode() == " " + text


def charsmap(source: str, target: str) -> bytes:
    """SentencePiece's map of one character (a double-array trie of its bytes) to `target`."""
    units = [0] * 2048
    # A node's unit holds the XOR offset of its children in bits 10 and up, and its label.
    position, base = 0, 1
    for byte in source.encode():
        child_base = base << 8
        units[position] |= (position ^ child_base) << 10
        position = child_base ^ byte
        units[position] |= byte
        base += 1
    leaf_base = base << 8
    units[position] |= 1 << 8 | (position ^ leaf_base) << 10
    units[leaf_base] = 1 << 31  # its value: where in the texts `target` begins
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + target.encode() + b"\0"


def test_unigram_maps_characters_first() -> None:
    mapped = list(charsmap("é", "e"))
    library = normalizers.Precompiled(bytes(mapped))
    assert library.normalize_str("café x") == "cafe x"
    tokenizer = from_gguf_metadata(metadata(precompiled_charsmap=mapped))
    assert tokenizer.encode("café") == tokenizer.encode("cafe")
    signed = [value - 256 if value > 127 else value for value in mapped]
    again = from_gguf_metadata(metadata(precompiled_charsmap=signed))
    assert again.encode("café") == tokenizer.encode("cafe")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precompiled_charsmap": [1, 2]}, "precompiled_charsmap cannot be read"),
        ({"precompiled_charsmap": ["a"]}, "precompiled_charsmap cannot be read"),
        ({"scores": [1.0]}, "scores must have .* items"),
        ({"scores": None}, "scores must have"),
    ],
)
def test_bad_unigram_metadata_is_explained(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        from_gguf_metadata(metadata(**changes))


# SentencePiece BPE ("llama")


def spm(pieces: list[tuple[str, float, int]], **changes: Any) -> dict[str, Any]:
    tokens, scores, types = (list(column) for column in zip(*pieces, strict=True))
    found = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
    }
    return {**found, **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}}


PIECES = [
    *(("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    *(("\u2581", -9.0, 1), ("a", -10.0, 1), ("b", -11.0, 1), ("ab", -1.0, 1), ("ba", -2.0, 1)),
    *(("aba", -4.0, 1), ("\u2581a", -3.0, 1), ("<tool>", 0.0, 4)),
]


def text_of(ids: list[int]) -> list[str]:
    return [PIECES[token][0] for token in ids]


def test_e05_spm_merges_the_best_score_first() -> None:
    tokenizer = from_gguf_metadata(spm(PIECES, add_space_prefix=False))
    assert text_of(tokenizer.encode("aba", False)) == ["aba"]
    assert text_of(tokenizer.encode("bab", False)) == ["b", "ab"], "ab has the better score"
    assert text_of(tokenizer.encode("baba", False)) == ["b", "aba"]


def test_e05_spm_space_before_bytes_and_added_tokens() -> None:
    with_space = from_gguf_metadata(spm(PIECES))
    without = from_gguf_metadata(spm(PIECES, add_space_prefix=False))
    assert text_of(with_space.encode("a", False)) == ["\u2581a"]
    assert text_of(without.encode("a", False)) == ["a"]
    assert text_of(without.encode("é", False)) == ["<0xC3>", "<0xA9>"]
    assert text_of(without.encode("a<tool>b", False)) == ["a", "<tool>", "b"]
    for tokenizer in (with_space, without):
        assert tokenizer.prefix_ids == (1,), "add_bos_token is true unless it says otherwise"
        for text in ("aba b é<tool>", "ab", "日本 a"):
            assert tokenizer.decode(tokenizer.encode(text, False)) == text
    assert from_gguf_metadata(spm(PIECES, add_bos_token=False)).prefix_ids == ()


def test_e05_spm_of_equal_scores_goes_by_length() -> None:
    """A merge rank for every pair, the same as without any ties."""
    flat = [(piece, -1.0 if kind == 1 else score, kind) for piece, score, kind in PIECES]
    tokenizer = from_gguf_metadata(spm(flat, add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode("ababab ba", False)) == "ababab ba"
    assert gguf_tokenizer("llama-spm").encode("Hello world", False) == [15043, 3186]
