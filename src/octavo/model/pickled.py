"""Pickled checkpoints (.bin, .pt, .pth, .ckpt): refused, because reading one can run code.

Owns: how they are known, and the command that converts them.
Does not know: safetensors, GGUF, who asks.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from octavo.model.errors import ModelError

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_NOT_WEIGHTS = frozenset({"training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin"})
_MAGIC = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How torch.save begins: a zip archive, or, in its old form, a pickle."""

CONVERTER = (
    "import sys, torch; from safetensors.torch import save_file; t = {}; "
    "[t.update(torch.load(f, map_location='cpu', weights_only=True)) for f in sys.argv[2:]]; "
    "save_file({k: v.clone().contiguous() for k, v in t.items()}, sys.argv[1], {'format': 'pt'})"
)
"""Python: OUTPUT INPUT... `weights_only` runs no code of the file; clones, because tensors that
share memory cannot be saved as two."""


def pickled_files(directory: Path) -> list[Path]:
    """Pickled weights in `directory`, in the order of their names."""
    found = (path for path in directory.iterdir() if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in found if path.name not in _NOT_WEIGHTS)


def is_pickled(path: Path) -> bool:
    """Whether the file `path` is one, by its name or its first bytes."""
    if path.suffix in SUFFIXES:
        return True
    with path.open("rb") as file:
        return file.read(4).startswith(_MAGIC)


def conversion(target: Path, files: list[Path]) -> str:
    """The shell command that writes `files` as one safetensors file. Code in double quotes: it has
    nothing in it that a shell would change."""
    words = [shlex.quote(str(path)) for path in (target, *files)]
    return f'python -c "{CONVERTER}" {" ".join(words)}'


def refuse(place: Path, files: list[Path]) -> ModelError:
    """`place` (the directory or file that was given) holds the pickled `files`."""
    folder = files[0].parent
    names = ", ".join(path.name for path in files[:3])
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    if any(path.name.startswith("consolidated.") for path in files):
        hint = (
            "It is LLaMA's original format, whose names and order of rows differ: take the Hugging "
            "Face version of the model, or a GGUF file."
        )
    else:
        hint = (
            "With torch and safetensors installed (pip install torch safetensors), this converts "
            f"them: {conversion(folder / 'model.safetensors', files)}"
        )
    return ModelError(
        f"{place}: the weights are pickled ({names}{more}), which can run code",
        "pickled_weights",
        hint,
    )
