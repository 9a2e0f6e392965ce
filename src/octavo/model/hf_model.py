"""A model in a Hugging Face directory: config, generation config, tokenizer files, safetensors.

Owns: which files such a directory has, and what is refused (remote code, quantised checkpoints).
Does not know: families' details, the safetensors format.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from octavo.model.errors import ModelError
from octavo.model.families.family import Family
from octavo.model.mapped import MappedFiles
from octavo.model.places import Place, file_shapes, find_places, take
from octavo.model.safetensors import (
    DTYPES,
    Entry,
    check_dtypes,
    find_tensors,
    load_json,
    raw_weight,
)
from octavo.model.spec import DecoderSpec
from octavo.model.weights import Checkpoint, check_tensors, expected_shapes
from octavo.ops import RawWeight

log = logging.getLogger(__name__)

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
_DROPPED = (".rotary_emb.inv_freq",)
"""Buffers that old checkpoints store and that are worked out from the config."""


def read_config(directory: Path) -> dict[str, Any]:
    """config.json, with `vocab_used` from the tokenizer; ModelError naming what cannot be used."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{directory}: no config.json, so this is not a model's directory",
            "missing_file",
            "Give a Hugging Face model directory, a .gguf file, a built-in alias or a hub name.",
        )
    config = load_json(path)
    if config.get("auto_map"):
        raise ModelError(
            f"{path}: auto_map asks for code that comes with the model; it is never run",
            "remote_code",
            "Use a model of a built-in architecture.",
        )
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise ModelError(
            f"{path}: quantization_config has quant_method {method!r}, which is not supported",
            "unsupported_quantization",
            "Use the unquantised model, or a quantised GGUF file of it.",
        )
    return config


def tokenizer_files(directory: Path) -> tuple[str, ...]:
    return tuple(str(directory / name) for name in TOKENIZER_FILES if (directory / name).is_file())


def vocabulary(directory: Path, vocab_size: int) -> int:
    """How many of the embedding's rows have a token; the rest is padding.

    Raises ModelError (code "vocabulary_mismatch") where tokens have no row. Tokens added beyond
    the embedding (a pad token, often) only earn a warning: they cannot be used.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        return vocab_size
    tokenizer = load_json(path)
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab or ()))
    own = max((i for i in ids if isinstance(i, int)), default=-1) + 1
    added = _added_ids(tokenizer)
    if own > vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {own} tokens, but the embedding has {vocab_size} rows",
            "vocabulary_mismatch",
            "The tokenizer belongs to another model.",
        )
    beyond = sorted(i for i in added.values() if i >= vocab_size)
    if beyond:
        log.warning(
            "%s: %d added tokens (from id %d) have no row in the embedding of %d: not usable",
            path, len(beyond), beyond[0], vocab_size,
        )  # fmt: skip
    used = max([own, *(i + 1 for i in added.values() if i < vocab_size)])
    return used or vocab_size


def special_token(directory: Path, key: str) -> int | None:
    """The id of tokenizer_config.json's `eos_token` or `bos_token`, if it has one."""
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return None
    config = load_json(path)
    token = config.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    decoder = config.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for number, entry in decoder.items():
            if isinstance(entry, dict) and entry.get("content") == text and number.isdecimal():
                return int(number)
    whole = directory / "tokenizer.json"
    return _added_ids(load_json(whole)).get(str(text)) if whole.is_file() else None


def _added_ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    return {
        str(entry.get("content")): entry["id"]
        for entry in tokenizer.get("added_tokens") or ()
        if isinstance(entry, dict) and isinstance(entry.get("id"), int)
    }


def find_weights(directory: Path, family: Family) -> dict[str, Entry]:
    """The directory's tensors, without buffers that are worked out anew. Of models that also see or
    hear those of the text model, by the names that they would have alone."""
    found, dropped = find_tensors(directory), (*_DROPPED, *family.hf_ignored)
    found = {name: entry for name, entry in found.items() if not name.endswith(dropped)}
    part = family.hf_text
    if part is None:
        return found
    names = {name: part.name(name) for name in found}
    others = sum(alone is None for alone in names.values())
    if others:
        log.info("%s: only the text model is used; %d other tensors are not", directory, others)
    return {alone: found[name] for name, alone in names.items() if alone is not None}


def check(
    directory: Path, spec: DecoderSpec, family: Family, entries: Mapping[str, Entry]
) -> dict[str, Place]:
    """The place of each canonical tensor, after one check of all names and shapes."""
    places = find_places(
        spec, expected_shapes(spec), family.hf_names, transposed=family.hf_transposed
    )
    found = {name: entry.shape for name, entry in entries.items()}
    hint = ""
    if spec.tied:
        found.pop(head_name(family), None)
    elif head_name(family) not in found and places["embed"].file in found:
        hint = 'If the embedding serves as head, config.json must say "tie_word_embeddings": true.'
    check_tensors(str(directory), file_shapes(places), found, hint)
    return places


def head_name(family: Family) -> str:
    return f"{family.hf_names['head']}.weight"


def formats(entries: Mapping[str, Entry], places: Mapping[str, Place]) -> dict[str, str]:
    """Canonical name -> `RawWeight.format`."""
    kinds = {name: entries[place.file].dtype for name, place in places.items()}
    return {name: DTYPES.get(kind, (kind, ""))[0] for name, kind in kinds.items()}


def open_weights(
    directory: Path, spec: DecoderSpec, family: Family, entries: Mapping[str, Entry]
) -> Checkpoint:
    """The tensors of the directory, checked against `spec`, mapped and not read."""
    places = check(directory, spec, family, entries)
    files = MappedFiles()
    used = {name: entries[place.file] for name, place in places.items()}
    check_dtypes(used.values())
    if spec.tied:
        _warn_of_other_head(directory, family, entries, files)

    def forget(name: str) -> None:
        files.forget(used[name].path, used[name].offset, used[name].size)

    def make(name: str, place: Place) -> RawWeight:
        return take(raw_weight(used[name], name, files, transposed=place.transposed), place)

    return Checkpoint({name: partial(make, name, place) for name, place in places.items()}, forget)


def _warn_of_other_head(
    directory: Path, family: Family, entries: Mapping[str, Entry], files: MappedFiles
) -> None:
    """The config's word counts: a head of its own beside a tied embedding is not used."""
    names = {"embed": f"{family.hf_names['embed']}.weight", "head": head_name(family)}
    if names["head"] not in entries:
        return
    embed, head = (raw_weight(entries[names[key]], key, files).data for key in ("embed", "head"))
    if embed.shape != head.shape or embed.dtype != head.dtype or not _equal(embed, head):
        log.warning(
            "%s: tie_word_embeddings is true, but %s differs from %s; the latter is used for both",
            directory, names["head"], names["embed"],
        )  # fmt: skip


def _equal(a: Any, b: Any, rows: int = 4096) -> bool:
    return all(np.array_equal(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows))


def dtype(config: Mapping[str, Any], entries: Mapping[str, Entry]) -> str:
    """The dtype of most weights, as config.json would spell it."""
    sizes: dict[str, int] = {}
    for entry in entries.values():
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.size
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    common = max(sizes, key=sizes.__getitem__, default="F32")
    declared = config.get("dtype", config.get("torch_dtype"))
    found = names.get(common, common)
    if declared is not None and str(declared).removeprefix("torch.") != found:
        log.info("config.json says %s, the weights are %s", json.dumps(declared), found)
    return found
