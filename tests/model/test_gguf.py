"""The GGUF container: what a sound file gives, and that no broken one is believed."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.model.errors import ModelError
from octavo.model.gguf import BLOCK_SIZES, read_header, read_metadata
from octavo.model.quant import dequantize
from support.gguf_files import entry, header, string, tensor

MB = 1 << 20
FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def test_metadata_comes_as_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int64("i64", -(2**60))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "né日😀")
    writer.add_array("strings", ["a", "", "日"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, 2.0])
    writer.add_array("flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_metadata(path)
    expected: dict[str, Any] = {
        "general.architecture": "llama",
        "u8": 200,
        "i64": -(2**60),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "text": "né日😀",
        "strings": ["a", "", "日"],
        "ints": [1, -2, 3],
        "floats": [0.5, 2.0],
        "flags": [True, False],
    }
    assert found == expected
    assert {key: type(value) for key, value in found.items()} == {
        key: type(value) for key, value in expected.items()
    }


def test_sizes_of_types_are_those_of_the_gguf_package() -> None:
    for number, (name, block, size) in BLOCK_SIZES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (name, (block, size))


@pytest.mark.parametrize("kind", [name for name, _, _ in BLOCK_SIZES.values()])
def test_e05_every_type_dequantises_bitwise_as_the_gguf_package_does(kind: str) -> None:
    """Random blocks, so also scales that no quantiser would write (infinities and NaN)."""
    _, block, size = next(item for item in BLOCK_SIZES.values() if item[0] == kind)
    rng = np.random.default_rng(len(kind))
    width = 512
    rows = rng.integers(0, 256, (700, width // block * size), dtype=np.uint8)
    native = {"F32": np.float32, "F16": np.float16}
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(
            rows.view(native.get(kind, np.uint8)), gguf.GGMLQuantizationType[kind]
        )
        found = dequantize(kind, rows, (700, width))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.astype(np.float32))


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "other magic": (b"PK\x03\x04" + b"\0" * 64, "begins with"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "big-endian magic": (header(magic=b"FUGG"), "big-endian"),
    "big-endian version": (header(version=struct.pack(">I", 3)), "big-endian"),
    "version 1": (header(version=struct.pack("<I", 1)), "version 1"),
    "version 99": (header(version=struct.pack("<I", 99)), "version 99"),
    "ends in the magic": (b"GG", "2"),
    "ends in the counts": (header()[:12], "bytes wanted"),
    "2^63 tensors": (header(counts=(2**63, 0)), "do not fit"),
    "2^63 entries": (header(counts=(0, 2**63)), "do not fit"),
    "string of 2^40": (
        header([struct.pack("<Q", 2**40) + b"x" * 40]),
        f"{2**40} bytes of a metadata key do not fit",
    ),
    "value of 2^40": (header([entry("k", 8, struct.pack("<Q", 2**40))]), "do not fit"),
    "array of 2^62 numbers": (
        header([entry("k", 9, struct.pack("<IQ", 4, 2**62))]),
        "values of k do not fit",
    ),
    "array of 2^62 strings": (
        header([entry("k", 9, struct.pack("<IQ", 8, 2**62))]),
        "strings of k do not fit",
    ),
    "long string in an array": (
        header([entry("k", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 2**63))]),
        "a string of k",
    ),
    "array of arrays of arrays": (
        header([entry("k", 9, struct.pack("<IQ", 9, 1) * 64)]),
        "nested too deeply",
    ),
    "unknown type of value": (header([entry("k", 77, b"\0" * 8)]), "unknown type 77"),
    "unknown type of elements": (
        header([entry("k", 9, struct.pack("<IQ", 55, 1))]),
        "elements of unknown type 55",
    ),
    "key twice": (header([entry("k", 7, b"\1"), entry("k", 7, b"\1")]), "'k' occurs twice"),
    "text that is no UTF-8": (
        header([entry("k", 8, struct.pack("<Q", 2) + b"\xff\xff")]),
        "not UTF-8",
    ),
    "alignment 3": (
        header([entry("general.alignment", 4, struct.pack("<I", 3))]),
        "not a power of two",
    ),
    "no dimensions": (header(tensors=[tensor("t", ())]), "0 dimensions"),
    "9 dimensions": (header(tensors=[tensor("t", (1,) * 9)]), "9 dimensions"),
    "dimension 0": (header(tensors=[tensor("t", (0, 4))]), "has shape"),
    "2^63 rows": (header(tensors=[tensor("t", (2**63, 2**63))]), "needs bytes up to"),
    "offset past the end": (
        header(tensors=[tensor("t", (8,), offset=2**40)], data=b"\0" * 32),
        "needs bytes up to",
    ),
    "offset not aligned": (
        header(tensors=[tensor("t", (1,), offset=4)], data=b"\0" * 64),
        "not a multiple of 32",
    ),
    "data cut by one byte": (
        header(tensors=[tensor("t", (8,))], data=b"\0" * 31),
        "but the file has",
    ),
    "rows of 100 in Q4_K": (
        header(tensors=[tensor("t", (100, 2), kind=12)], data=b"\0" * 1024),
        "not a multiple of 256",
    ),
    "tensor twice": (
        header(tensors=[tensor("t", (8,)), tensor("t", (8,))], data=b"\0" * 64),
        "'t' occurs twice",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_e05_a_broken_header_is_refused_before_anything_is_allocated(
    name: str, tmp_path: Path
) -> None:
    data, expected = BROKEN[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            read_header(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert expected in str(caught.value)
    assert str(path) in str(caught.value).splitlines()[0]
    assert caught.value.code == "bad_gguf"
    assert peak < MB


def test_e05_an_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(header(tensors=[tensor("blk.0.attn_q.weight", (32, 2), kind=99)]))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight.* type 99") as caught:
        read_header(path)
    assert caught.value.code == "unsupported_tensor_type"
    assert "Q4_K" in str(caught.value), "it names what is supported"


SOUND = header(
    [
        entry("general.architecture", 8, string("llama")),
        entry("list", 9, struct.pack("<IQ", 8, 2) + string("a") + string("bc")),
        entry("numbers", 9, struct.pack("<IQ3f", 6, 3, 1.0, 2.0, 3.0)),
        entry("n", 4, struct.pack("<I", 7)),
    ],
    [tensor("a", (32, 2)), tensor("b", (32, 3), kind=8, offset=256)],
    data=b"\0" * 512,
)


def test_the_sound_file_of_the_next_tests_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "sound.gguf"
    path.write_bytes(SOUND)
    found = read_header(path)
    assert found.metadata["list"] == ["a", "bc"]
    assert found.tensors["b"].shape == (3, 32)
    assert found.tensors["b"].size == 3 * 34


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, len(SOUND) - 1))
def test_e05_a_file_cut_anywhere_is_refused_or_whole(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(SOUND[:cut])
    needed = len(SOUND) - (512 - 256 - 3 * 34)
    if cut >= needed:
        assert set(read_header(path).tensors) == {"a", "b"}
    else:
        with pytest.raises(ModelError):
            read_header(path)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(SOUND) - 513), st.integers(0, 255)), min_size=1, max_size=6
    )
)
def test_e05_changed_bytes_give_a_model_error_or_a_sound_header(
    changes: list[tuple[int, int]], tmp_path: Path
) -> None:
    data = bytearray(SOUND)
    for position, value in changes:
        data[position] = value
    path = tmp_path / "changed.gguf"
    path.write_bytes(bytes(data))
    try:
        found = read_header(path)
    except ModelError:
        return
    assert all(t.offset + t.size <= len(data) for t in found.tensors.values())


def test_e05_a_split_model_is_read_from_any_of_its_parts(tmp_path: Path) -> None:
    first = header(
        [entry("split.count", 2, struct.pack("<H", 2)), entry("n", 4, struct.pack("<I", 7))],
        [tensor("a", (8,))],
        data=b"\0" * 32,
    )
    second = header(
        [entry("split.no", 2, struct.pack("<H", 1))], [tensor("b", (8,))], data=b"\0" * 32
    )
    paths = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    paths[0].write_bytes(first)
    with pytest.raises(ModelError, match=r"1 of them are missing: m-00002-of-00002\.gguf"):
        read_header(paths[0])
    paths[1].write_bytes(second)
    for path in paths:
        found = read_header(path)
        assert found.metadata["n"] == 7
        assert {t.name: t.path for t in found.tensors.values()} == {
            "a": str(paths[0]),
            "b": str(paths[1]),
        }
    paths[1].write_bytes(first)
    with pytest.raises(ModelError, match="'a' is also in"):
        read_header(paths[0])


def test_a_file_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_header(tmp_path / "none.gguf")
    assert caught.value.code == "missing_file"
