"""Builds a tokenizer from the metadata of a GGUF file.

Owns: the `tokenizer.*` keys of GGUF, and how byte-level BPE, SentencePiece BPE and SentencePiece
unigram are rebuilt from them with the `tokenizers` library.
Does not know: the file (model.gguf reads it), or pre-tokenizers' expressions (pretokenizers).

Key names: github.com/ggml-org/ggml, docs/gguf.md. Merges from scores: the method of transformers'
SentencePiece conversion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

from octavo.text.errors import TokenizerError
from octavo.text.gguf_keys import Keys
from octavo.text.gguf_unigram import unigram
from octavo.text.pretokenizers import pre_tokenizer
from octavo.text.tokenizer import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Values of tokenizer.ggml.token_type that make an added token."""
_META_SPACE = "\u2581"
_END_OF_TURN = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|return|>"),
        *("<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "<|call|>"),
    }
)
"""Control tokens that end a turn in every model that has them; many files name only one EOS."""
_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator"}
"""The template's name of a special token -> GGUF's (which spells "separator" with an e)."""


def from_gguf_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file from its metadata as plain values (numbers, strings, lists).

    Raises TokenizerError where the kind of tokenizer is not supported or the keys do not agree.
    """
    ggml = Keys(metadata)
    kind = ggml.text("model")
    tokens = _tokens(ggml)
    types = ggml.list_of("token_type", len(tokens), default=1)
    if kind == "gpt2":
        pre = pre_tokenizer(
            ggml.optional_text("pre"), str(metadata.get("general.architecture", ""))
        )
        backend = _byte_level(ggml, tokens, pre.whole_words)
        backend.pre_tokenizer = pre.build()
        if (normalizer := pre.normalizer()) is not None:
            backend.normalizer = normalizer
        add_bos = pre.add_bos
    elif kind == "llama":
        backend = _sentencepiece(ggml, tokens, types)
        add_bos = True
    elif kind == "t5":
        backend = unigram(ggml, tokens, types)
        add_bos = False
    else:
        raise TokenizerError(
            f"the GGUF file's tokenizer {kind!r} (tokenizer.ggml.model) is not supported; "
            "supported are 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE) and 't5' "
            "(SentencePiece unigram). "
            "A directory with tokenizer.json works instead"
        )
    _add_tokens(backend, tokens, types, strips_right=_strips_right(metadata))
    return _finish(ggml, metadata, backend, tokens, types, add_bos)


def _tokens(ggml: Keys) -> list[str]:
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(ggml.list_of("tokens", None))]
    if len(set(tokens)) != len(tokens):
        twice, _ = Counter(tokens).most_common(1)[0]
        raise TokenizerError(f"the GGUF file's vocabulary has the token {twice!r} twice")
    return tokens


def _byte_level(ggml: Keys, tokens: Sequence[str], whole_words: bool) -> tokenizers.Tokenizer:
    merges = []
    for merge in ggml.list_of("merges", None):
        # A piece may be a space itself only as an added token, but it may begin with one.
        at = merge.find(" ", 1)
        if at < 0:
            raise TokenizerError(f"tokenizer.ggml.merges has an entry without two parts: {merge!r}")
        merges.append((merge[:at], merge[at + 1 :]))
    backend = _bpe(tokens, merges, ignore_merges=whole_words)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(ggml: Keys, tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    scores = ggml.list_of("scores", len(tokens))
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    backend = _bpe(
        tokens,
        _merges_of_scores(tokens, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    prefix = ggml.flag("add_space_prefix", True)
    spaces = normalizers.Replace(" ", _META_SPACE)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_META_SPACE), spaces]) if prefix else spaces
    )
    steps: list[Any] = [
        decoders.Replace(_META_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _bpe(
    tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any
) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(
            f"the GGUF file's merges do not suit its vocabulary: {error}"
        ) from error


def _merges_of_scores(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece stores no merges: two pieces merge into any piece that they spell, the piece
    with the best score first."""
    ids = {token: i for i, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    # Vocabularies of 262,144 pieces are in use. Most scores occur once: cuts of one piece come in
    # order by themselves, and only pieces of equal scores are sorted.
    for _, group in groupby(sorted(ids.values(), key=lambda i: -scores[i]), scores.__getitem__):
        pieces = [tokens[i] for i in group]
        cuts = [
            (left, right)
            for piece in pieces
            for cut in range(len(piece) - 1, 0, -1)
            if (left := piece[:cut]) in ids and (right := piece[cut:]) in ids
        ]
        if len(pieces) > 1:
            cuts.sort(key=lambda pair: (-len(pair[0]), -len(pair[1]), ids[pair[0]], ids[pair[1]]))
        merges += cuts
    return merges


def _strips_right(metadata: Mapping[str, Any]) -> frozenset[str] | None:
    """Control tokens of Phi-3 swallow the white space after them, all but the ones returned; the
    format cannot say so, hence llama.cpp too goes by the model's name. None: not such a model."""
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" in name or "phi3" in name:
        return frozenset(("<unk>", "<s>", "<|endoftext|>"))
    return None


def _add_tokens(
    backend: tokenizers.Tokenizer,
    tokens: Sequence[str],
    types: Sequence[int],
    strips_right: frozenset[str] | None,
) -> None:
    added = []
    for token, kind in zip(tokens, types, strict=True):
        if kind not in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            continue
        special = kind != _USER_DEFINED
        rstrip = special and strips_right is not None and token not in strips_right
        added.append(tokenizers.AddedToken(token, special=special, normalized=False, rstrip=rstrip))
    backend.add_tokens(added)


def _finish(
    ggml: Keys,
    metadata: Mapping[str, Any],
    backend: tokenizers.Tokenizer,
    tokens: Sequence[str],
    types: Sequence[int],
    add_bos: bool,
) -> Tokenizer:
    size = len(tokens)
    ids = {name: ggml.id(f"{key}_token_id", size) for name, key in _NAMES.items()}
    named = {f"{name}_token": tokens[i] for name, i in ids.items() if i is not None}
    ends = [ids["eos"], ggml.id("eot_token_id", size), ggml.id("eom_token_id", size)]
    control = {token: i for i, token in enumerate(tokens) if types[i] == _CONTROL}
    ends += [i for token, i in control.items() if token in _END_OF_TURN]
    if "<|return|>" in control:  # the harmony format: <|end|> ends a message, and the turn goes on
        ends = [i for i in ends if i != control.get("<|end|>")]
    bos = ids["bos"]
    with_bos = bos is not None and ggml.flag("add_bos_token", add_bos)
    return Tokenizer(
        backend,
        prefix_ids=(bos,) if bos is not None and with_bos else (),
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        named_tokens=named,
        chat_templates=_chat_templates(metadata),
    )


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """`tokenizer.chat_template` is the default; named ones are `tokenizer.chat_template.<name>`."""
    prefix = "tokenizer.chat_template"
    found = {}
    for key, value in metadata.items():
        if key.startswith(prefix) and isinstance(value, str):
            found[key.removeprefix(prefix).removeprefix(".") or "default"] = value
    return found
