"""Encoding, BOS, decoding and the bytes of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from octavo.text.errors import TokenizerError
from octavo.text.hf_tokenizer import from_directory
from octavo.text.tokenizer import Tokenizer
from support.text_tokenizers import ADDED, SPECIAL, byte_level, gguf_tokenizer


def test_a18_bos_is_added_once(bytes_tokenizer: Tokenizer) -> None:
    bos = bytes_tokenizer.bos_id
    assert bytes_tokenizer.encode("hi") == [bos, *bytes_tokenizer.encode("hi", False)]
    assert bytes_tokenizer.encode("<|bos|>hi") == bytes_tokenizer.encode("hi")
    assert bytes_tokenizer.encode("<|bos|>hi", add_special_tokens=False).count(bos) == 1
    # Two BOS that the text itself asks for stay as they are.
    assert bytes_tokenizer.encode("<|bos|><|bos|>").count(bos) == 2


def test_a18_eos_is_never_appended(bytes_tokenizer: Tokenizer) -> None:
    assert bytes_tokenizer.eos_id not in bytes_tokenizer.encode("hello world")


def test_a12_empty_text(bytes_tokenizer: Tokenizer) -> None:
    """An empty prompt is BOS where there is one, and no token at all where there is none: the
    caller must refuse the latter."""
    assert bytes_tokenizer.encode("") == [bytes_tokenizer.bos_id]
    assert Tokenizer(bytes_tokenizer.backend).encode("") == []
    assert bytes_tokenizer.decode([]) == ""


def test_a24_decode_puts_no_spaces_around_added_tokens(bytes_tokenizer: Tokenizer) -> None:
    ids = [
        bytes_tokenizer.token_id("<think>"),
        *bytes_tokenizer.encode("ok", False),
        bytes_tokenizer.token_id("</think>"),
        *bytes_tokenizer.encode("1", False),
        bytes_tokenizer.token_id("<|im_end|>"),
    ]
    assert bytes_tokenizer.decode(ids) == "<think>ok</think>1"
    assert bytes_tokenizer.decode(ids, skip_special_tokens=False) == "<think>ok</think>1<|im_end|>"


def test_d16_control_tokens_in_text_are_control_tokens(bytes_tokenizer: Tokenizer) -> None:
    text = "x<|im_end|>\n<|im_start|>system\n</s>[INST]<|endoftext|>"
    ids = bytes_tokenizer.encode(text, add_special_tokens=False)
    assert bytes_tokenizer.token_id("<|im_end|>") in ids
    assert bytes_tokenizer.decode(ids, skip_special_tokens=False) == text
    assert set(bytes_tokenizer.special_tokens) == set(SPECIAL)


@pytest.mark.parametrize("name", ["llama-bpe", "phi-3"])
def test_d16_every_added_token_alone(name: str) -> None:
    tokenizer = gguf_tokenizer(name)
    for token in tokenizer.backend.get_added_tokens_decoder():
        text = tokenizer.token_text(token)
        assert tokenizer.encode(text, add_special_tokens=False) == [token]
        assert tokenizer.decode([token], skip_special_tokens=False) == text


def test_ids_without_a_token_have_no_text(bytes_tokenizer: Tokenizer) -> None:
    beyond = bytes_tokenizer.vocab_size + 5
    assert bytes_tokenizer.decode([beyond, ord("a")]) == "a"
    assert bytes_tokenizer.token_bytes(beyond) == b""


def test_a03_token_bytes_are_raw(bytes_tokenizer: Tokenizer, spm_tokenizer: Tokenizer) -> None:
    for tokenizer in (bytes_tokenizer, spm_tokenizer):
        ids = tokenizer.encode("Hi 😀 日本 é", add_special_tokens=False)
        raw = b"".join(map(tokenizer.token_bytes, ids))
        assert raw.decode().strip() == "Hi 😀 日本 é"
    assert bytes_tokenizer.token_bytes(0xE6) == b"\xe6"
    assert bytes_tokenizer.token_text(0xE6) == "\ufffd"
    assert spm_tokenizer.token_bytes(3 + 0xE6) == b"\xe6"
    assert bytes_tokenizer.token_bytes(bytes_tokenizer.token_id("<think>") or 0) == b"<think>"


def test_d02_length_bound_never_exceeds_the_true_count() -> None:
    tokenizer = byte_level()
    # "<|im_start|>" is the longest token.
    assert tokenizer.max_token_chars == len("<|im_start|>")
    assert tokenizer.min_token_count("x" * 1_200_000) == 100_000

    @given(st.text() | st.lists(st.sampled_from((*SPECIAL, *ADDED, "日本", "hello"))).map("".join))
    def bound_holds(text: str) -> None:
        assert tokenizer.min_token_count(text) <= len(tokenizer.encode(text, False))

    bound_holds()


def test_d02_composition_is_allowed_for() -> None:
    backend = Backend(models.BPE(vocab={"\u1f82": 0}, merges=[]))
    backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend)
    text = "\u03b1\u0313\u0300\u0345" * 100
    assert len(tokenizer.encode(text)) == 100
    assert 1 <= tokenizer.min_token_count(text) <= 100


def test_lone_surrogates_are_refused_with_their_place(bytes_tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="lone surrogate at character 2"):
        bytes_tokenizer.encode("ab\ud800")


class TestDirectory:
    """Tokenizers of Hugging Face directories."""

    def write(self, folder: Path, config: dict[str, object], post: object = None) -> None:
        backend = byte_level().backend
        backend.post_processor = post
        backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))

    def test_named_tokens_and_template(self, tmp_path: Path) -> None:
        self.write(
            tmp_path,
            {
                "bos_token": {"content": "<|bos|>"},
                "eos_token": "<|im_end|>",
                "chat_template": "old",
            },
        )
        (tmp_path / "chat_template.jinja").write_text("new")
        tokenizer = from_directory(tmp_path)
        assert tokenizer.named_tokens == {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
        assert tokenizer.eos_ids == (tokenizer.token_id("<|im_end|>"),)
        assert tokenizer.chat_template == "new"
        assert not tokenizer.add_bos

    def test_several_templates(self, tmp_path: Path) -> None:
        templates = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
        self.write(tmp_path, {"chat_template": templates})
        assert from_directory(tmp_path).chat_templates == {"default": "A", "tool_use": "B"}

    def test_a18_bos_as_the_post_processor_says_without_its_eos(self, tmp_path: Path) -> None:
        ids = byte_level().special_tokens
        post = processors.TemplateProcessing(
            single="<|bos|> $A <|im_end|>",
            special_tokens=[(text, ids[text]) for text in ("<|bos|>", "<|im_end|>")],
        )
        self.write(tmp_path, {"bos_token": "<|bos|>"}, post)
        tokenizer = from_directory(tmp_path)
        assert tokenizer.encode("a") == [ids["<|bos|>"], ord("a")]
        self.write(tmp_path, {"bos_token": "<|bos|>", "add_bos_token": False}, post)
        assert from_directory(tmp_path).encode("a") == [ord("a")]

    def test_add_bos_token_overrides(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"bos_token": "<|bos|>", "add_bos_token": True})
        assert from_directory(tmp_path).encode("a")[0] == byte_level().bos_id

    def test_tokens_of_the_config_alone(self, tmp_path: Path) -> None:
        size = byte_level().vocab_size
        added = {str(size): {"content": "<|new|>", "special": True}}
        self.write(tmp_path, {"added_tokens_decoder": added})
        tokenizer = from_directory(tmp_path)
        assert tokenizer.encode("<|new|>") == [size]
        assert size in tokenizer.special_ids
        self.write(tmp_path, {"added_tokens_decoder": {"3": {"content": "<|other|>"}}})
        with pytest.raises(TokenizerError, match=r"'<\|other\|>' the id 3"):
            from_directory(tmp_path)

    def test_errors_name_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
            from_directory(tmp_path)
        (tmp_path / "tokenizer.model").write_bytes(b"")
        with pytest.raises(TokenizerError, match=r"tokenizer\.model but no tokenizer\.json"):
            from_directory(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer"):
            from_directory(tmp_path)
        self.write(tmp_path, {})
        (tmp_path / "tokenizer_config.json").write_text("{")
        with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is not valid JSON"):
            from_directory(tmp_path)


def test_added_token_outside_the_alphabet_is_plain_text() -> None:
    backend = byte_level().backend
    backend.add_tokens([AddedToken("日 x", normalized=False)])
    tokenizer = Tokenizer(backend)
    token = tokenizer.token_id("日 x")
    assert token is not None
    assert tokenizer.token_bytes(token) == "日 x".encode()
    assert tokenizer.decode([token]) == "日 x"
