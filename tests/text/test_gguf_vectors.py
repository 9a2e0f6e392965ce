"""Tokenizers rebuilt from real GGUF files give the known token ids, exactly."""

from __future__ import annotations

import time

import pytest

from octavo.model.gguf import read_metadata
from octavo.text.errors import TokenizerError
from octavo.text.gguf_tokenizer import from_gguf_metadata
from octavo.text.pretokenizers import pre_tokenizer
from support.text_tokenizers import DATA, gguf_tokenizer

NAMES = ("falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2")
SEPARATOR = "\n__ggml_vocab_test__\n"


def vectors(name: str) -> list[tuple[str, list[int]]]:
    base = DATA / "tokenizers" / f"ggml-vocab-{name}.gguf"
    texts = (base.parent / f"{base.name}.inp").read_bytes().decode().split(SEPARATOR)
    lines = (base.parent / f"{base.name}.out").read_text().split("\n")
    return [
        (text, [int(token) for token in line.split()])
        for text, line in zip(texts, lines, strict=False)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_e05_token_ids_are_exact(name: str) -> None:
    tokenizer = gguf_tokenizer(name)
    cases = vectors(name)
    assert len(cases) >= 45
    for text, ids in cases:
        assert tokenizer.encode(text, add_special_tokens=False) == ids, repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_text_survives_the_round_trip(name: str) -> None:
    tokenizer = gguf_tokenizer(name)
    for text, ids in vectors(name):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert joined in (text, " " + text)


def test_gpt_neox_equals_the_original_tokenizer_json() -> None:
    import tokenizers

    tokenizer = gguf_tokenizer("gpt-neox")
    original = tokenizers.Tokenizer.from_file(
        str(DATA / "tokenizers" / "gpt_neox_20b.tokenizer.json")
    )
    for text, _ in vectors("mpt"):
        ids = original.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == ids, repr(text)
        assert tokenizer.decode(ids) == original.decode(ids)


def test_e05_special_tokens_bos_and_ends_are_known() -> None:
    llama = gguf_tokenizer("llama-bpe")
    assert llama.token_id("<|eot_id|>") in llama.eos_ids
    assert llama.eos_id == llama.token_id("<|end_of_text|>")
    assert llama.encode("a")[0] == llama.bos_id and llama.add_bos
    qwen = gguf_tokenizer("qwen2")
    assert qwen.token_id("<|im_end|>") in qwen.eos_ids
    assert not qwen.add_bos
    assert qwen.chat_template is not None and "im_start" in qwen.chat_template
    assert qwen.named_tokens["eos_token"] == "<|endoftext|>"


def test_building_is_fast() -> None:
    """A 50,000-token vocabulary with its merges is built in well under half a second; the limit
    leaves room for a loaded machine."""
    gguf_tokenizer("gpt-2")
    metadata = read_metadata(DATA / "tokenizers" / "ggml-vocab-gpt-2.gguf")
    best = 10.0
    for _ in range(3):
        start = time.perf_counter()
        from_gguf_metadata(metadata)
        best = min(best, time.perf_counter() - start)
    assert best < 0.5


def test_unknown_pre_tokenizer_is_named() -> None:
    with pytest.raises(TokenizerError, match=r"'kimi-k2' is not supported.*qwen2"):
        pre_tokenizer("kimi-k2", "deepseek2")


def test_missing_pre_tokenizer_is_not_guessed() -> None:
    assert pre_tokenizer(None, "gptneox") == pre_tokenizer("gpt-neox", "")
    with pytest.raises(TokenizerError, match="does not name its pre-tokenizer"):
        pre_tokenizer(None, "llama")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv'.*not supported.*'t5'"),
        ({"tokenizer.ggml.model": None}, "no tokenizer"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "'a' twice"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type must have 3 items.*1 items"),
        ({"tokenizer.ggml.merges": ["ab"]}, "without two parts: 'ab'"),
        ({"tokenizer.ggml.merges": ["a z"]}, "do not suit its vocabulary"),
        ({"tokenizer.ggml.tokens": 7}, "tokens must have a list"),
    ],
)
def test_bad_metadata_is_explained(change: dict[str, object], message: str) -> None:
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.token_type": [1, 1, 1],
        "tokenizer.ggml.merges": ["a b"],
    }
    assert from_gguf_metadata(metadata).encode("ab") == [2]
    with pytest.raises(TokenizerError, match=message):
        from_gguf_metadata({**metadata, **change})


def test_special_ids_outside_the_vocabulary_are_ignored() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 7,
        "tokenizer.ggml.eos_token_id": -1,
        "tokenizer.ggml.add_bos_token": True,
    }
    tokenizer = from_gguf_metadata(metadata)
    assert tokenizer.bos_id is None and tokenizer.prefix_ids == ()
    assert tokenizer.eos_ids == (1,)
    assert tokenizer.encode("a<|im_end|>") == [0, 1]
