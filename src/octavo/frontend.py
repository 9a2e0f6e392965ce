"""The text side of a model: its tokenizer and its chat template, from the files it comes with.

Owns: which reader a model's format needs, and what the chat_template option means.
Does not know: how tokenizers and templates work (text), weights, or HTTP.
"""

from __future__ import annotations

from pathlib import Path

from octavo.model.info import ModelInfo
from octavo.text.chat import ChatTemplate
from octavo.text.errors import ChatError
from octavo.text.tokenizer import Tokenizer


def load_tokenizer(model: ModelInfo) -> Tokenizer:
    """The tokenizer that comes with the model. Raises TokenizerError."""
    if model.format == "gguf":
        from octavo.model.gguf import read_metadata
        from octavo.text.gguf_tokenizer import from_gguf_metadata

        return from_gguf_metadata(read_metadata(model.path))
    from octavo.text.hf_tokenizer import from_directory

    return from_directory(model.path)


def load_template(tokenizer: Tokenizer, option: str | None = None) -> ChatTemplate | None:
    """The model's chat template, or the one that `option` gives (its text, or the path of a file).
    None where there is none. Raises ChatError for one that cannot be read or does not compile."""
    source = tokenizer.chat_template if option is None else _source(option)
    if source is None:
        return None
    return ChatTemplate(source, tokenizer.named_tokens)


def _source(option: str) -> str:
    if "{" in option or "\n" in option:
        return option
    try:
        return Path(option).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatError(
            f"cannot read the chat template {option}: {error}", "chat_template"
        ) from None
