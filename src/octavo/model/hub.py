"""Fetches models from the Hugging Face hub, into the hub's own cache.

Owns: which files of a repository are wanted, and what the hub's failures mean.
Does not know: what is in the files (registry).

Pickled weights are never fetched.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from octavo.model.errors import ModelError
from octavo.model.gguf import split_names

_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
_OTHER_FORMATS = ["*/*", "*consolidated*"]
"""Folders (ONNX, original checkpoints) and Mistral's own format, which double the size."""


def fetch_from_hub(name: str, *, offline: bool = False, similar: Sequence[str] = ()) -> Path:
    """`name` is "org/name", or "org/name/file.gguf". Progress is shown by the hub's own bars.

    Raises ModelError with code "gated_model", "unknown_model", "not_cached", "no_network",
    "disk_full" or "download_failed".
    """
    # Imported here: it takes a good part of a second, and a local model does without.
    from huggingface_hub import hf_hub_download, snapshot_download

    organisation, repository, *rest = name.split("/")
    repo_id = f"{organisation}/{repository}"
    try:
        if rest:
            files = split_names("/".join(rest))
            paths = [hf_hub_download(repo_id, file, local_files_only=offline) for file in files]
            return Path(paths[0])
        snapshot = snapshot_download(
            repo_id,
            allow_patterns=_PATTERNS,
            ignore_patterns=_OTHER_FORMATS,
            local_files_only=offline,
        )
    except Exception as error:
        raise _explain(name, error, offline, similar) from error
    path = Path(str(snapshot))
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{name}: the repository holds no config.json",
            "missing_file",
            f"If it holds GGUF files, name one of them: {name}/FILE.gguf",
        )
    return path


def _explain(name: str, error: Exception, offline: bool, similar: Sequence[str]) -> ModelError:
    """The hub's exceptions, by what a user can do about them."""
    from huggingface_hub import errors

    guess = f" Did you mean the built-in {' or '.join(similar)}?" if similar else ""
    if isinstance(error, errors.GatedRepoError):
        return ModelError(
            f"{name}: the model is gated, and its makers have not let this account in",
            "gated_model",
            f"Accept its terms at https://huggingface.co/{name}, then set HF_TOKEN to a token "
            "of that account.",
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return ModelError(
            f"{name}: no such model on the hub, or a private one",
            "unknown_model",
            f"Check the spelling; for a private model set HF_TOKEN.{guess}",
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return ModelError(f"{name}: the repository holds no such file", "unknown_model")
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        reason = "downloads are off (--offline)" if offline else "the hub cannot be reached"
        return ModelError(
            f"{name} is not in the hub's cache, and {reason}",
            "not_cached" if offline else "no_network",
            f"Check the network and HTTPS_PROXY, or give a path.{guess}",
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelError(
            f"the download of {name} failed: the disk is full",
            "disk_full",
            "Free some space, or set HF_HOME to another disk.",
        )
    return ModelError(
        f"the download of {name} failed: {type(error).__name__}: {error}",
        "download_failed",
        f"Check the network and HTTPS_PROXY, or give a path.{guess}",
    )
