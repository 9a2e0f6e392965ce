"""A model in a Hugging Face directory: config, generation config, tokenizer files, safetensors.

Owns: which files such a directory has, and what is refused (remote code).
Does not know: families' details, the safetensors format, how matrices are quantised (quantized).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from octavo.model.errors import ModelError
from octavo.model.families.family import Family, TextPart
from octavo.model.mapped import MappedFiles
from octavo.model.places import Place, Stacked, file_shapes, find_places, flat_shape, span, take
from octavo.model.quantized.modules import QuantizedModules
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
_PACKED = (".qweight", ".weight_packed", ".weight_scale")
_DROPPED = (".rotary_emb.inv_freq",)
"""Buffers that old checkpoints store and that are worked out from the config."""


def read_config(directory: Path, own_code: Collection[str] = ()) -> dict[str, Any]:
    """config.json; ModelError naming what cannot be used. `own_code` names the classes that may
    stand in it as the checkpoint's own, because they compute what is built in."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{directory}: no config.json, so this is not a model's directory",
            "missing_file",
            "Give a Hugging Face model directory, a .gguf file, a built-in alias or a hub name.",
        )
    config = load_json(path)
    if config.get("auto_map") and _code(config["auto_map"]) not in own_code:
        raise ModelError(
            f"{path}: auto_map asks for code that comes with the model; it is never run",
            "remote_code",
            "Use a model of a built-in architecture.",
        )
    return config


def _code(auto_map: object) -> str | None:
    """The class that computes the model; a repository's name may stand before it."""
    code = auto_map.get("AutoModelForCausalLM") if isinstance(auto_map, dict) else None
    return code.rpartition("--")[2] if isinstance(code, str) else None


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
    """The directory's tensors, without buffers that are worked out anew, by the names that they
    have in a checkpoint with a head. Of models that also see or hear those of the text model, by
    the names that they would have alone."""
    dropped, prefix = (*_DROPPED, *family.hf_ignored), family.hf_prefix
    found = {k: entry for k, entry in find_tensors(directory).items() if not k.endswith(dropped)}
    if family.hf_text is not None:
        found = _text_part(directory, family.hf_text, found)
    if not prefix or any(name.startswith(prefix) for name in found):
        return found
    head = head_name(family)
    return {name if name == head else prefix + name: entry for name, entry in found.items()}


def _text_part(directory: Path, part: TextPart, found: dict[str, Entry]) -> dict[str, Entry]:
    names = {name: part.name(name) for name in found}
    others = sum(alone is None for alone in names.values())
    if others:
        log.info("%s: only the text model is used; %d other tensors are not", directory, others)
    return {alone: found[name] for name, alone in names.items() if alone is not None}


def check(
    directory: Path,
    spec: DecoderSpec,
    family: Family,
    entries: Mapping[str, Entry],
    quantized: QuantizedModules | None = None,
) -> dict[str, Place]:
    """The place of each canonical tensor, after one check of all names and shapes."""
    places = _places(spec, family, entries)
    found = {name: entry.shape for name, entry in entries.items()}
    hint = ""
    if spec.tied:
        head = f"{family.hf_names['head']}."
        found = {name: shape for name, shape in found.items() if not name.startswith(head)}
    elif head_name(family) not in found and places["embed"].file in found:
        hint = 'If the embedding serves as head, config.json must say "tie_word_embeddings": true.'
    wanted = file_shapes(places)
    if quantized is not None:
        wanted = quantized.wanted(wanted, places)
        found = {n: s for n, s in found.items() if n in wanted or not quantized.needless(n)}
        hint = hint or f"Quantised matrices are read as {quantized.scheme.label}."
    elif any(name.endswith(_PACKED) for name in found):
        hint = "Its matrices are quantised, but no quantization_config in config.json says how."
    check_tensors(str(directory), wanted, found, hint)
    return places


def _places(spec: DecoderSpec, family: Family, entries: Mapping[str, Entry]) -> dict[str, Place]:
    """By the family's names, or by those that it has for checkpoints with stacked experts, where
    this is one."""
    names = family.hf_names
    sparse = [str(i) for i, layer in enumerate(spec.layers) if layer.experts]
    stacks = [target for target in family.hf_stacked.values() if isinstance(target, Stacked)]
    if any(s.module.replace("{i}", i) + s.suffix in entries for s in stacks for i in sparse):
        names = {**names, **family.hf_stacked}
    return find_places(spec, expected_shapes(spec), names, transposed=family.hf_transposed)


def head_name(family: Family) -> str:
    return f"{family.hf_names['head']}.weight"


def formats(
    entries: Mapping[str, Entry],
    places: Mapping[str, Place],
    quantized: QuantizedModules | None = None,
) -> dict[str, str]:
    """Canonical name -> `RawWeight.format`."""
    coded = {} if quantized is None else quantized.matrices(places)
    kinds = {n: entries[place.file].dtype for n, place in places.items() if place.file not in coded}
    plain = {name: DTYPES.get(kind, (kind, ""))[0] for name, kind in kinds.items()}
    return {
        name: plain[name] if name in plain else coded[place.file].format
        for name, place in places.items()
    }


def open_weights(
    directory: Path,
    spec: DecoderSpec,
    family: Family,
    entries: Mapping[str, Entry],
    quantized: QuantizedModules | None = None,
) -> Checkpoint:
    """The tensors of the directory, checked against `spec`, mapped and not read."""
    places = check(directory, spec, family, entries, quantized)
    files = MappedFiles()
    coded = {} if quantized is None else quantized.matrices(places)
    used = {n: entries[place.file] for n, place in places.items() if place.file not in coded}
    check_dtypes(used.values())
    if spec.tied:
        _warn_of_other_head(directory, family, entries, files)

    def forget(name: str) -> None:
        if name not in used:
            coded[places[name].file].forget()
            return
        entry = used[name]
        first, size = span(places[name], entry.shape, entry.size)
        files.forget(entry.path, entry.offset + first, size)

    def make(name: str, place: Place) -> RawWeight:
        if place.file in coded:
            return take(coded[place.file].weight(name), place)
        entry = replace(used[name], shape=flat_shape(place, used[name].shape))
        return take(raw_weight(entry, name, files, transposed=place.transposed), place)

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


def dtype(
    config: Mapping[str, Any],
    entries: Mapping[str, Entry],
    quantized: QuantizedModules | None = None,
) -> str:
    """The quantisation, or the dtype of most weights as config.json would spell it."""
    if quantized is not None:
        return quantized.scheme.label
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
