"""Reads safetensors files by memory map: one file, or shards with an index.

Owns: the format (8 bytes of length, a JSON header, the data) and the check that files are whole.
Does not know: what the tensors are for.

A file must be exactly as long as its header says: a short one would otherwise be read as zeros or
kill the process later. Format: github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from octavo.model.errors import ModelError
from octavo.model.mapped import MappedFiles
from octavo.model.pickled import pickled_files, refuse
from octavo.ops import RawWeight

DTYPES = {"F32": ("f32", "<f4"), "F16": ("f16", "<f2"), "BF16": ("bf16", "<u2")}
_VIEWS = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "F8_E4M3": "u1", "I8": "i1", "I32": "<u4", "I64": "<i8",
}  # fmt: skip
"""How tensors are mapped that are not weights by themselves: words of codes without a sign."""
_LARGEST_HEADER = 100_000_000
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: where its bytes lie (`offset` from the file's start)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    path: Path


def find_tensors(directory: Path) -> dict[str, Entry]:
    """All tensors of a Hugging Face directory, every file checked for its length.

    Raises ModelError naming the file: "missing_file", "bad_safetensors", "pickled_weights".
    """
    index = directory / _INDEX
    if index.is_file():
        return _sharded(directory, index)
    single = directory / _SINGLE
    if single.is_file():
        return read_header(single)
    others = sorted(directory.glob("*.safetensors"))
    if len(others) == 1:
        return read_header(others[0])
    if others:
        raise ModelError(
            f"{directory}: {len(others)} safetensors files, but no {_INDEX} says what is in them",
            "missing_file",
            f"Incomplete download? Fetch {_INDEX} too.",
        )
    if pickled := pickled_files(directory):
        raise refuse(directory, pickled)
    if ggufs := sorted(directory.glob("*.gguf")):
        raise ModelError(
            f"{directory}: no safetensors, but GGUF files",
            "ambiguous_model",
            f"Name the file: {ggufs[0]}" if len(ggufs) == 1 else "Name one of the files.",
        )
    raise ModelError(
        f"{directory}: no weights: neither {_SINGLE} nor {_INDEX} is there",
        "missing_file",
        "Incomplete download? Give a directory with safetensors, or a .gguf file.",
    )


def _sharded(directory: Path, index: Path) -> dict[str, Entry]:
    weight_map = load_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad(index, "weight_map is missing or empty")
    files = sorted({str(name) for name in weight_map.values()})
    for name in files:
        if Path(name).name != name:
            raise _bad(index, f"it names {name!r}, which is not a file of this directory")
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise ModelError(
            f"{directory}: {len(missing)} of {len(files)} shards are missing: "
            f"{', '.join(missing[:6])}",
            "missing_file",
            "Incomplete download? Fetch the model again.",
        )
    shards = {name: read_header(directory / name) for name in files}
    absent = [
        f"{name} (in {file})" for name, file in weight_map.items() if name not in shards[file]
    ]
    if absent:
        raise _bad(index, f"{len(absent)} tensors are not where it says: {', '.join(absent[:6])}")
    return {name: shards[file][name] for name, file in weight_map.items()}


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of one file; ModelError (code "bad_safetensors") if it is not whole."""
    size = path.stat().st_size
    if size == 0:
        raise _bad(path, "the file is empty (0 bytes)")
    with path.open("rb") as file:
        start = file.read(8)
        if start == b"version ":
            raise _bad(path, "it is a Git LFS pointer, not the file itself", "Run `git lfs pull`.")
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise _bad(path, f"its header claims {length} bytes, but the file has {size}")
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        entries = {name: _entry(path, name, raw, 8 + length) for name, raw in header.items()}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        raise _bad(path, "its header is not a table of tensors") from None
    _check_length(path, entries, 8 + length, size)
    return entries


def _entry(path: Path, name: str, raw: dict[str, Any], start: int) -> Entry:
    begin, end = raw["data_offsets"]
    shape = tuple(raw["shape"])
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise TypeError(name)
    return Entry(name, str(raw["dtype"]), shape, start + begin, end - begin, path)


def _check_length(path: Path, entries: dict[str, Entry], start: int, size: int) -> None:
    expected = start
    for entry in sorted(entries.values(), key=lambda e: (e.offset, e.size)):
        if entry.offset != expected or entry.size < 0:
            raise _bad(path, f"tensor {entry.name!r} begins at {entry.offset}, not at {expected}")
        expected += entry.size
        if entry.dtype in _VIEWS:
            width = np.dtype(_VIEWS[entry.dtype]).itemsize
            if prod(entry.shape) * width != entry.size:
                raise _bad(
                    path,
                    f"tensor {entry.name!r} {entry.dtype} {entry.shape} has {entry.size} bytes",
                )
    if expected != size:
        raise _bad(path, f"it should have {expected} bytes, but has {size}")


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object; ModelError (code "bad_config" or "missing_file") naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}", "missing_file") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}", "bad_config") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object", "bad_config")
    return value


def check_dtypes(entries: Iterable[Entry]) -> None:
    """Raises ModelError (code "unsupported_dtype") naming the first tensor that cannot be read."""
    for entry in entries:
        if entry.dtype not in DTYPES:
            raise ModelError(
                f"{entry.path}: tensor {entry.name} is {entry.dtype}; "
                f"supported are {', '.join(DTYPES)}",
                "unsupported_dtype",
            )


def array(entry: Entry, files: MappedFiles) -> Any:
    """`entry` as an array, mapped: words and bytes as they are, half floats widened to float32.

    `entry.dtype` must be one that quantised modules are made of (F32, F16, BF16, F8_E4M3, I8, I32,
    I64); I32 comes unsigned.
    """
    data = files.view(entry.path, entry.offset, entry.size).view(_VIEWS[entry.dtype])
    data = data.reshape(entry.shape)
    return _widen("bf16", data) if entry.dtype == "BF16" else data


def raw_weight(
    entry: Entry, name: str, files: MappedFiles, *, transposed: bool = False
) -> RawWeight:
    """`entry`, whose dtype was checked, as a RawWeight called `name`, mapped by `files`;
    `transposed`: turned, for which it is copied."""
    label, dtype = DTYPES[entry.dtype]
    data = files.view(entry.path, entry.offset, entry.size).view(dtype)
    data = data.reshape(entry.shape)
    return _float_weight(name, label, np.ascontiguousarray(data.T) if transposed else data)


def _float_weight(name: str, label: str, data: Any) -> RawWeight:
    return RawWeight(
        name,
        data.shape,
        label,
        data,
        lambda: _widen(label, data),
        lambda begin, end: _widen(label, data[begin:end]),
        lambda index: _float_weight(name, label, data[index]),
    )


def _widen(label: str, data: Any) -> Any:
    """float32 of the data. Half precision is always widened, so nothing overflows at 65504."""
    if label == "bf16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(data, dtype=np.float32)


def _bad(path: Path, what: str, hint: str = "Incomplete or corrupt download?") -> ModelError:
    return ModelError(f"{path}: not a whole safetensors file: {what}", "bad_safetensors", hint)
