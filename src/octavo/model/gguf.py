"""Reads the header of a GGUF file: metadata and the table of tensors, every count checked.

Owns: the GGUF container format (versions 2 and 3, little-endian) and the sizes of its types.
Does not know: architectures (families), dequantisation (gguf_weights), tokenizers (text).

The file is untrusted: no count, length or offset is believed before it is compared with the bytes
that are left, so a header cannot make this module allocate more than the file's own size.
Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import difflib
import mmap
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from octavo.model.errors import ModelError

BLOCK_SIZES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
"""Tensor type id -> (name, weights in a block, bytes of a block)."""

_OTHER_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    41: "Q1_0",
}
"""Types that exist, or did, and that no weight can be read from: for naming them."""

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Metadata type id -> struct code; 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_MAX_NESTING = 4
_SPLIT = re.compile(r"^(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the file. `shape` is outermost first, e.g. (outputs, inputs), the reverse of
    the file's order; `offset` is absolute; `size` in bytes; `type` a name of `BLOCK_SIZES`."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class Header:
    """`metadata` holds plain Python values (numbers, bools, strings, lists of them)."""

    path: str
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The metadata of a GGUF file as plain values; raises ModelError if it is not a sound one."""
    return read_header(path).metadata


def read_header(path: str | Path) -> Header:
    """Header of one file, or of all files of a split model (named by any of its parts).

    Raises ModelError (code "bad_gguf", "missing_file") naming the file and what is wrong.
    """
    paths = split_parts(Path(path))
    headers = [_read_file(part) for part in paths]
    first = headers[0]
    for other in headers[1:]:
        for name, entry in other.tensors.items():
            if name in first.tensors:
                raise _bad(entry.path, f"tensor {name!r} is also in {first.tensors[name].path}")
            first.tensors[name] = entry
    if len(headers) > 1:
        _check_split(first, len(headers))
    return first


def split_names(name: str) -> list[str]:
    """The names of all parts of a split model, in order, if `name` is one of them; or itself."""
    match = _SPLIT.match(name)
    if match is None or int(match["count"]) < 1:
        return [name]
    stem, count = match["stem"], int(match["count"])
    return [f"{stem}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


def split_parts(path: Path) -> list[Path]:
    """The files that make up the model at `path`: itself, or all parts of a split one in order."""
    parts = [path.with_name(name) for name in split_names(path.name)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing and len(parts) > 1:
        raise ModelError(
            f"{path} is one of {len(parts)} parts and {len(missing)} of them are missing: "
            f"{', '.join(missing[:4])}",
            "missing_file",
            "Incomplete download? Put all parts into one folder.",
        )
    return parts


def _check_split(header: Header, parts: int) -> None:
    declared = header.metadata.get("split.count", parts)
    if declared != parts:
        raise _bad(header.path, f"split.count is {declared!r}, but the name says {parts} parts")
    total = header.metadata.get("split.tensors.count", len(header.tensors))
    if total != len(header.tensors):
        raise _bad(
            header.path,
            f"split.tensors.count is {total!r}, but the parts hold {len(header.tensors)} tensors",
        )


def _bad(path: str | Path, what: str) -> ModelError:
    return ModelError(
        f"{path}: not a sound GGUF file: {what}", "bad_gguf", "Incomplete or corrupt download?"
    )


def _unknown_type(path: str, name: str, kind: int) -> ModelError:
    known = [label for label, _, _ in BLOCK_SIZES.values()]
    label = _OTHER_TYPES.get(kind)
    near = difflib.get_close_matches(label, known, n=1, cutoff=0.5) if label else []
    nearest = f"The nearest is {near[0]}. " if near else ""
    called = f"{kind} ({label})" if label else f"{kind}, newer than this version knows"
    return ModelError(
        f"{path}: tensor {name!r} has type {called}, which is not supported "
        f"(supported: {', '.join(known)})",
        "unsupported_tensor_type",
        f"{nearest}Use a file quantised to one of these types, e.g. Q4_K_M or Q8_0.",
    )


def _read_file(path: Path) -> Header:
    try:
        size = path.stat().st_size
        if size == 0:
            raise _bad(path, "the file is empty (0 bytes)")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(str(path), data, size).header()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}", "missing_file") from None


class _Reader:
    """A cursor over the mapped file that never goes past its end."""

    def __init__(self, path: str, data: mmap.mmap, size: int) -> None:
        self.path = path
        self.data = data
        self.size = size
        self.at = 0

    def header(self) -> Header:
        magic = self._take(4)
        if magic != b"GGUF":
            raise _bad(self.path, _explain_magic(magic))
        version = self._scalar("I")
        if version not in (2, 3):
            if version in (2 << 24, 3 << 24):
                raise _bad(self.path, "it is big-endian; only little-endian files are supported")
            raise _bad(self.path, f"version {version}; supported are 2 and 3")
        tensor_count = self._count("Q", "tensors", 24)
        pair_count = self._count("Q", "metadata entries", 13)
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string("a metadata key")
            if key in metadata:
                raise _bad(self.path, f"metadata key {key!r} occurs twice")
            metadata[key] = self._value(self._scalar("I"), key, 0)
        return Header(self.path, version, metadata, self._tensors(tensor_count, metadata))

    def _tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, TensorEntry]:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _bad(self.path, f"general.alignment is {alignment!r}, not a power of two")
        raw = [self._tensor_info() for _ in range(count)]
        start = -(-self.at // alignment) * alignment
        entries: dict[str, TensorEntry] = {}
        for name, shape, kind, offset in raw:
            if name in entries:
                raise _bad(self.path, f"tensor {name!r} occurs twice")
            entries[name] = self._entry(name, shape, kind, start, offset, alignment)
        return entries

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string("a tensor name")
        dims = self._scalar("I")
        if not 1 <= dims <= _MAX_DIMS:
            raise _bad(
                self.path, f"tensor {name!r} has {dims} dimensions (1 to {_MAX_DIMS} allowed)"
            )
        shape = tuple(self._scalar("Q") for _ in range(dims))
        return name, shape[::-1], self._scalar("I"), self._scalar("Q")

    def _entry(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: int,
        start: int,
        offset: int,
        alignment: int,
    ) -> TensorEntry:
        if kind not in BLOCK_SIZES:
            raise _unknown_type(self.path, name, kind)
        label, block, block_bytes = BLOCK_SIZES[kind]
        if min(shape) < 1:
            raise _bad(self.path, f"tensor {name!r} has shape {shape}")
        if shape[-1] % block:
            raise _bad(
                self.path,
                f"tensor {name!r} has rows of {shape[-1]}, not a multiple of {block} ({label})",
            )
        size = prod(shape) // block * block_bytes
        if offset % alignment:
            raise _bad(
                self.path, f"tensor {name!r} begins at {offset}, not a multiple of {alignment}"
            )
        if start + offset + size > self.size:
            raise _bad(
                self.path,
                f"tensor {name!r} needs bytes up to {start + offset + size}, "
                f"but the file has {self.size}",
            )
        return TensorEntry(name, shape, label, start + offset, size, self.path)

    def _take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise _bad(
                self.path,
                f"{count} bytes wanted at {self.at}, but the file has {self.size}",
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def _scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _count(self, code: str, what: str, smallest: int) -> int:
        """A count of things of at least `smallest` bytes each: it cannot exceed what is left."""
        count = int(self._scalar(code))
        if count > (self.size - self.at) // smallest:
            raise _bad(
                self.path,
                f"{count} {what} do not fit into the {self.size - self.at} bytes that are left",
            )
        return count

    def _string(self, what: str) -> str:
        try:
            return self._take(self._count("Q", f"bytes of {what}", 1)).decode("utf-8")
        except UnicodeDecodeError:
            raise _bad(self.path, f"{what} is not UTF-8") from None

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key, depth)
        if kind not in _SCALARS:
            raise _bad(self.path, f"metadata key {key!r} has unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, key: str, depth: int) -> list[Any]:
        kind = self._scalar("I")
        if kind == _STRING:
            return self._strings(key, self._count("Q", f"strings of {key}", 8))
        if kind == _ARRAY:
            if depth >= _MAX_NESTING:
                raise _bad(self.path, f"metadata key {key!r} is nested too deeply")
            count = self._count("Q", f"arrays of {key}", 12)
            return [self._array(key, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise _bad(self.path, f"metadata key {key!r} has elements of unknown type {kind}")
        code = _SCALARS[kind]
        width = struct.calcsize("<" + code)
        count = self._count("Q", f"values of {key}", width)
        return list(struct.unpack(f"<{count}{code}", self._take(count * width)))

    def _strings(self, key: str, count: int) -> list[str]:
        """Hundreds of thousands in a vocabulary, so without a call for each."""
        data, at, size = self.data, self.at, self.size
        length_of: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                begin = at + 8
                end = begin + length_of(data, at)[0]
                if end > size:
                    raise _bad(
                        self.path,
                        f"a string of {key} is {end - begin} bytes long, "
                        f"but the file ends after {size - begin}",
                    )
                found.append(data[begin:end].decode("utf-8"))
                at = end
        except struct.error:
            raise _bad(self.path, f"the file ends within {key}") from None
        except UnicodeDecodeError:
            raise _bad(self.path, f"string {len(found)} of {key} is not UTF-8") from None
        self.at = at
        return found


def _explain_magic(magic: bytes) -> str:
    if magic == b"FUGG":
        return "it is big-endian; only little-endian files are supported"
    if magic == b"vers":
        return "it is a Git LFS pointer, not the file itself (run `git lfs pull`)"
    return f"it begins with {magic!r}, not with b'GGUF'"
