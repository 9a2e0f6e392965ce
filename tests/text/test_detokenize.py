"""Token by token, the text is that of the whole."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from octavo.text.detokenize import Detokenizer
from octavo.text.tokenizer import Tokenizer
from support.text_tokenizers import byte_level, gguf_tokenizer, sentencepiece

BYTES = byte_level()
PIECES = sentencepiece()
TEXT = "Hi 😀 日本 é 👩‍👩‍👧 naïve Ελληνικά\n\n\tend\u200b."


def stream(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip)
    return [*(detokenizer.push([token]) for token in ids), detokenizer.finish()]


@given(st.lists(st.integers(0, BYTES.vocab_size + 3), max_size=40), st.booleans())
@example([0xF0, 0x9F, 0x98, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xC0, 0xE6, 0x97], True)
@example([0xED, 0xA0, 0x80, 0xF4, 0x90, 0x80, 0x80, 0xE0, 0x80], False)
def test_byte_level_stream_equals_decode(ids: list[int], skip: bool) -> None:
    assert "".join(stream(BYTES, ids, skip)) == BYTES.decode(ids, skip)


def well_formed(ids: list[int]) -> bool:
    """Whether each run of byte tokens is valid UTF-8 as a whole or invalid from its start."""
    for is_byte, run in itertools.groupby(ids, lambda token: 3 <= token < 259):
        raw = b"".join(map(PIECES.token_bytes, run)) if is_byte else b""
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            if error.start > 0 or any(byte < 0x80 for byte in raw):
                return False
            if raw.decode("utf-8", "ignore"):
                return False
    return True


@st.composite
def spm_ids(draw: st.DrawFn) -> list[int]:
    ids: list[int] = []
    for part in draw(st.lists(st.text(max_size=3) | st.integers(0, PIECES.vocab_size - 1))):
        if isinstance(part, str):
            ids += [3 + byte for byte in part.encode("utf-8", "ignore")]
        else:
            ids.append(part)
    return ids


@given(spm_ids(), st.booleans())
def test_sentencepiece_stream_equals_decode(ids: list[int], skip: bool) -> None:
    kept = [token for token in ids if not (skip and token in PIECES.special_ids)]
    text = "".join(stream(PIECES, ids, skip))
    if well_formed(kept):
        assert text == PIECES.decode(ids, skip)
    else:  # the stream keeps the whole characters of a run that goes wrong
        raw = b"".join(map(PIECES.token_bytes, kept)).decode("utf-8", "surrogateescape")
        shown = "".join("\ufffd" if "\udc80" <= char <= "\udcff" else char for char in raw)
        assert text == shown.removeprefix(" ")


@pytest.mark.parametrize("name", ["llama-spm", "phi-3", "llama-bpe", "qwen2", "gpt-2"])
def test_a03_real_text_streams_without_replacement_characters(name: str) -> None:
    tokenizer = gguf_tokenizer(name)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    parts = stream(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids) == TEXT
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])
def test_a03_one_byte_a_token(tokenizer: Tokenizer) -> None:
    first = 0 if tokenizer is BYTES else 3
    parts = stream(tokenizer, [first + byte for byte in TEXT.encode()])
    assert "".join(parts) == TEXT
    assert not any("\ufffd" in part for part in parts)
    assert parts[3:7] == ["", "", "", "😀"]


def test_a03_cut_off_character_is_flushed_at_the_end() -> None:
    assert stream(BYTES, [ord("a"), 0xE6, 0x97]) == ["a", "", "", "\ufffd"]
    assert stream(PIECES, [3 + 0xE6, 3 + 0x97]) == ["", "", "\ufffd\ufffd"]


def test_leading_space_belongs_to_a_continuation() -> None:
    world = PIECES.token_id("▁world")
    the = PIECES.token_id("the")
    assert world is not None and the is not None
    assert Detokenizer(PIECES).push([world]) == "world"
    assert Detokenizer(PIECES, prompt=[1]).push([world]) == "world"
    assert Detokenizer(PIECES, prompt=[1, the]).push([world]) == " world"


def test_character_begun_in_the_prompt_is_completed() -> None:
    detokenizer = Detokenizer(BYTES, prompt=[ord("x"), 0xF0, 0x9F])
    assert detokenizer.push([0x98]) == ""
    assert detokenizer.push([0x80, ord("!")]) == "😀!"


def wordpiece() -> Tokenizer:
    words = ["[UNK]", "play", "##ing", "##s", "games", ".", "日", "##本"]
    backend = Backend(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return Tokenizer(backend)


@given(st.lists(st.integers(0, 7), max_size=30))
def test_other_decoders_stream_in_windows(ids: list[int]) -> None:
    """A decoder that looks at neighbours; sequences begin with a whole word, as texts do."""
    tokenizer = wordpiece()
    sequence = [1, *ids]
    assert "".join(stream(tokenizer, sequence)) == tokenizer.decode(sequence)
