"""Safetensors files that are not whole, and tensors that do not fit."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.model.errors import ModelError
from octavo.model.registry import inspect, open_model
from octavo.model.safetensors import read_header
from octavo.model.weights import expected_shapes
from support import golden_models

SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return golden_models.write_checkpoint(tmp_path / "m", "llama", shards=3)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def overwrite(path: Path, begin: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[begin : begin + len(data)] = data
    path.write_bytes(bytes(raw))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "deleted": (lambda p: p.unlink(), "1 of 3 shards are missing"),
    "one byte short": (lambda p: cut(p, p.stat().st_size - 1), "should have {size} bytes"),
    "half": (lambda p: cut(p, p.stat().st_size // 2), "should have {size} bytes"),
    "one byte more": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "should have {size} bytes"),
    "empty": (lambda p: p.write_bytes(b""), "empty (0 bytes)"),
    "five bytes": (lambda p: cut(p, 5), "but the file has 5"),
    "header of 2^60": (lambda p: overwrite(p, 0, b"\0\0\0\0\0\0\0\x10"), "claims"),
    "header is no JSON": (lambda p: overwrite(p, 8, b"!!!!"), "not a table of tensors"),
    "LFS pointer": (
        lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "Git LFS pointer",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_e03_a_damaged_shard_is_refused_naming_file_and_sizes(name: str, sharded: Path) -> None:
    shard = sharded / SHARD
    size = shard.stat().st_size
    damage, expected = DAMAGE[name]
    damage(shard)
    for look in (inspect, open_model):
        with pytest.raises(ModelError) as caught:
            look(sharded)
        text = str(caught.value)
        assert SHARD in text.splitlines()[0]
        assert expected.format(size=size) in text
        assert "ncomplete" in text or "git lfs pull" in text


def test_e03_an_index_that_names_an_absent_tensor_is_refused(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.layers.9.self_attn.q_proj.weight"] = SHARD
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=f"layers.9.self_attn.q_proj.weight.*{SHARD}"):
        inspect(sharded)


def test_an_index_cannot_name_files_elsewhere(sharded: Path) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(ModelError, match="not a file of this directory"):
        inspect(sharded)


def header_of(entries: dict[str, Any], data: int) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * data


def entry(begin: int, end: int, shape: Any = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("entries", "data"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12),
        ({"a": entry(0, 8), "b": entry(16, 24)}, 24),
        ({"a": entry(0, 4)}, 4),
        ({"a": entry(8, 0)}, 8),
        ({"a": entry(-8, 0)}, 8),
        ({"a": entry(0, 2**62)}, 8),
        ({"a": entry(0, 8, shape=(-2,))}, 8),
        ({"a": entry(0, 8, shape=(2**40, 2**40))}, 8),
        ({"a": entry(0, 8, shape=("2",))}, 8),
        ({"a": entry(0, 8, shape=None)}, 8),
        ({"a": {"dtype": "F32"}}, 8),
        ({"a": None}, 8),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, 8),
        ([], 0),
    ],
)
def test_e03_a_table_that_contradicts_itself_is_refused(
    entries: Any, data: int, tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(header_of(entries, data))
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert caught.value.code == "bad_safetensors"


def test_missing_extra_and_misshapen_tensors_are_one_error(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "llama")
    tensors = golden_models.tensors("llama")
    del tensors["model.layers.2.self_attn.k_proj.bias"]
    tensors["model.norm.weight"] = np.zeros(63, np.float32)
    tensors["model.layers.3.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
    golden_models.save(path / "model.safetensors", tensors)
    for look in (inspect, open_model):
        with pytest.raises(ModelError) as caught:
            look(path)
        text = str(caught.value)
        assert caught.value.code == "bad_tensors"
        assert "1 missing: model.layers.2.self_attn.k_proj.bias (48,)" in text
        assert "1 extra: model.layers.3.mlp.up_proj.weight (2, 2)" in text
        assert "1 misshapen: model.norm.weight (63,) instead of (64,)" in text


def test_a_missing_layer_lists_no_more_names_than_are_useful(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "llama")
    config = {**golden_models.CONFIGS["llama"], "num_hidden_layers": 40}
    golden_models.write_config(path, config)
    with pytest.raises(ModelError, match=r"\d+ missing: .* and \d+ more") as caught:
        inspect(path)
    assert len(str(caught.value)) < 2000


def test_buffers_that_are_worked_out_anew_are_dropped(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "llama")
    tensors = golden_models.tensors("llama")
    for i in range(3):
        name = f"model.layers.{i}.self_attn.rotary_emb.inv_freq"
        tensors[name] = np.zeros(12, np.float32)
    golden_models.save(path / "model.safetensors", tensors)
    assert inspect(path).parameters == sum(v.size for k, v in tensors.items() if "rotary" not in k)


def test_an_unsupported_dtype_is_named(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "mistral")
    tensors = dict(golden_models.tensors("mistral"))
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float64)
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight is F64; supported are F32"):
        open_model(path)


def test_pickled_weights_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "mistral")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ModelError) as caught:
        inspect(path)
    assert caught.value.code == "pickled_weights"
    assert "save_file" in caught.value.hint and str(path) in caught.value.hint


def test_no_weights_at_all(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "mistral")
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        inspect(path)


def test_opening_maps_and_does_not_read(tmp_path: Path) -> None:
    """Every tensor of the source is a view of a mapped file."""
    path = golden_models.write_checkpoint(tmp_path / "m", "qwen2_bf16", shards=2)
    opened = open_model(path)
    for name, shape in expected_shapes(opened.spec).items():
        raw = opened.source.get(name)
        assert (raw.shape, raw.format) == (shape, "bf16")
        base = raw.data
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        assert isinstance(base.obj, mmap.mmap)
    opened.source.close()
    assert not opened.source.has("embed")


@pytest.mark.parametrize("name", golden_models.CONFIGS)
def test_b08_half_precision_is_widened_exactly(name: str, tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", name)
    source, tensors = open_model(path).source, golden_models.tensors(name)
    embed = source.get("embed").dequantize()
    assert embed.dtype == np.float32
    np.testing.assert_array_equal(embed, tensors["model.embed_tokens.weight"])


def tied(tmp_path: Path, head: str) -> Path:
    path = golden_models.write_checkpoint(tmp_path / "m", "llama_tied_yarn_f16")
    tensors = golden_models.tensors("llama_tied_yarn_f16")
    if head == "equal":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    if head == "different":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + np.float32(1)
    golden_models.save(path / "model.safetensors", tensors, "float16")
    return path


@pytest.mark.parametrize("head", ["absent", "equal", "different"])
def test_e01_tied_embeddings_follow_the_config_and_are_held_once(
    head: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tied(tmp_path, head)
    opened = open_model(path)
    assert opened.spec.tied and not opened.source.has("head")
    warned = [r for r in caplog.records if "tie_word_embeddings" in r.getMessage()]
    assert len(warned) == (1 if head == "different" else 0)
    plain = golden_models.tensors("llama_tied_yarn_f16")
    assert opened.info.parameters == sum(v.size for v in plain.values())
    assert opened.info.weight_bytes == 4 * opened.info.parameters


def test_e01_an_untied_model_without_head_is_refused_with_the_key(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "llama")
    tensors = golden_models.tensors("llama")
    del tensors["lm_head.weight"]
    golden_models.save(path / "model.safetensors", tensors)
    with pytest.raises(ModelError, match=r"lm_head\.weight") as caught:
        inspect(path)
    assert "tie_word_embeddings" in caught.value.hint
