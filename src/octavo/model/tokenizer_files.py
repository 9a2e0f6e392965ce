"""Whether a model comes with a tokenizer that can be read: known before anything is loaded.

Owns: that refusal, and the command that makes a tokenizer.json of older files.
Does not know: how tokenizers are read (text).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from octavo.model.errors import ModelError
from octavo.model.info import ModelInfo

_OLDER = ("tokenizer.model", "spiece.model", "vocab.json", "tekken.json", "vocab.txt")
"""What older checkpoints have instead of tokenizer.json."""

CONVERTER = (
    "import sys; from transformers import AutoTokenizer; "
    "AutoTokenizer.from_pretrained(sys.argv[1], use_fast=True).save_pretrained(sys.argv[1])"
)


def require_tokenizer(model: ModelInfo) -> None:
    """Raises ModelError (code "missing_tokenizer") where the model in a directory has no
    tokenizer.json, or the one in a GGUF file no tokens. What is in them is the text side's to
    judge."""
    directory = Path(model.path)
    if model.format == "gguf":
        if not model.tokenizer_files:
            raise ModelError(
                f"{model.path}: has no tokenizer: tokenizer.ggml.tokens is missing",
                "missing_tokenizer",
                "Convert the model again, with its tokenizer's files beside it.",
            )
        return
    if (directory / "tokenizer.json").is_file():
        return
    older = [name for name in _OLDER if (directory / name).is_file()]
    if older:
        raise ModelError(
            f"{directory}: has {older[0]}, but no tokenizer.json",
            "missing_tokenizer",
            "This makes one (pip install transformers sentencepiece protobuf): "
            f'python -c "{CONVERTER}" {shlex.quote(str(directory))}',
        )
    raise ModelError(
        f"{directory}: has no tokenizer.json",
        "missing_tokenizer",
        "Incomplete download? Fetch the tokenizer's files too, or copy tokenizer.json from the "
        "model that it was made of.",
    )
