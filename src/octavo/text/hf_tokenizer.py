"""Builds a tokenizer from a Hugging Face directory.

Owns: tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json and the
places where chat templates are kept.
Does not know: GGUF, the model's own config, or how templates are rendered (chat).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from octavo.text.errors import TokenizerError
from octavo.text.tokenizer import Tokenizer

_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


def from_directory(path: str | Path) -> Tokenizer:
    """The tokenizer of the model directory `path`.

    Needs tokenizer.json; the other files are optional. Raises TokenizerError naming the file at
    fault.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(_missing(folder))
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(f"{file} is not a tokenizer that can be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = _json(folder / "tokenizer_config.json")
    special_map = _json(folder / "special_tokens_map.json")
    _add_missing(backend, config)
    named = {
        name: text
        for name in _NAMES
        if (text := _content(config.get(name, special_map.get(name)))) is not None
    }
    known = [text for text in named.values() if backend.token_to_id(text) is not None]
    backend.add_special_tokens(known)
    bos, eos = (backend.token_to_id(named.get(name, "")) for name in ("bos_token", "eos_token"))
    return Tokenizer(
        backend,
        prefix_ids=_prefix(backend, config.get("add_bos_token"), bos),
        bos_id=bos,
        eos_ids=() if eos is None else (eos,),
        named_tokens=named,
        chat_templates=_chat_templates(folder, config),
    )


def _missing(folder: Path) -> str:
    others = [name for name in ("tokenizer.model", "vocab.json") if (folder / name).is_file()]
    if others:
        return (
            f"{folder} has {others[0]} but no tokenizer.json; save it once with transformers "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...)) to make one"
        )
    return f"{folder} has no tokenizer.json"


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{file} must hold a JSON object")
    return value


def _content(value: Any) -> str | None:
    """A token is written as its text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_missing(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Tokens that only tokenizer_config.json knows (`added_tokens_decoder`), in the order of their
    ids, so that each gets its own."""
    decoder = config.get("added_tokens_decoder") or {}
    for key in sorted(decoder, key=int):
        entry = decoder[key]
        text = _content(entry)
        if text is None or backend.token_to_id(text) is not None:
            continue
        flags = {
            name: bool(entry.get(name, False))
            for name in ("special", "normalized", "lstrip", "rstrip", "single_word")
        }
        backend.add_tokens([tokenizers.AddedToken(text, **flags)])
        if backend.token_to_id(text) != int(key):
            raise TokenizerError(
                f"tokenizer_config.json gives {text!r} the id {key}, which tokenizer.json does not "
                f"leave free (it became {backend.token_to_id(text)})"
            )


def _prefix(
    backend: tokenizers.Tokenizer, add_bos: bool | None, bos: int | None
) -> tuple[int, ...]:
    """What goes before a text: as tokenizer.json's post-processor does it, which
    `add_bos_token` of tokenizer_config.json overrides. What it puts after a text (EOS) is left
    out: it would end the prompt."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    at = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    prefix = tuple(full[:at])
    if bos is None or not isinstance(add_bos, bool):
        return prefix
    if add_bos:
        return prefix if bos in prefix else (bos, *prefix)
    return tuple(token for token in prefix if token != bos)


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Templates by name. The files of their own win over tokenizer_config.json."""
    found: dict[str, str] = {}
    sources = [
        config.get("chat_template"),
        _json(folder / "chat_template.json").get("chat_template"),
    ]
    for source in sources:
        if isinstance(source, str):
            found["default"] = source
        elif isinstance(source, list):
            found.update({str(item["name"]): str(item["template"]) for item in source})
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = file.read_text(encoding="utf-8")
    return found
