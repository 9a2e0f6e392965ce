"""The compiled backend in a whole decoder: its logits, what it holds, what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import Options
from octavo.deploy import plan
from octavo.engine.messages import EngineConfig
from octavo.machine import inspect as inspect_machine
from octavo.model.decoder import Decoder
from octavo.model.errors import ModelError
from octavo.model.kv_cache import bytes_per_block
from octavo.model.registry import inspect, open_model
from octavo.model.runner import load
from octavo.model.sizes import sized
from octavo.model.weights import expected_shapes
from octavo.ops import CacheLayout, RawWeight
from octavo.ops.native import build_info, native_reason
from octavo.ops.select import select_ops
from support import golden_models, native_isas, run_decoder
from support.load_config import load_config
from support.tiny_models import write_tiny_random

pytestmark = pytest.mark.skipif(not build_info(), reason=native_reason() or "no kernels")

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 1e-4
"""Of the largest logit."""


def golden(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return arrays["ids"], arrays["logits"]


def worst(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", golden_models.CONFIGS)
def test_float32_logits_equal_transformers_whole_and_in_chunks(name: str, tmp_path: Path) -> None:
    ids, expected = golden(name)
    path = golden_models.write_checkpoint(tmp_path / name, name)
    decoder, ops = run_decoder.load(path, backend="cpu", dtype="float32", threads=2)
    whole = run_decoder.logits(decoder, ops, ids, len(ids))
    assert worst(whole, expected) < TOLERANCE
    for piece in (7, 1):
        assert run_decoder.logits(decoder, ops, ids, piece).tobytes() == whole.tobytes()


class Rounded:
    """A WeightSource whose matrices are rounded to bf16, to nearest, ties to even."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.has, self.done, self.close = source.has, source.done, source.close

    def get(self, name: str) -> RawWeight:
        raw: RawWeight = self._source.get(name)
        if len(raw.shape) == 1:
            return raw
        bits = np.ascontiguousarray(raw.dequantize()).view(np.uint32)
        near = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return RawWeight(name, raw.shape, "f32", near, lambda: near.view(np.float32))


@pytest.mark.parametrize("name", golden_models.CONFIGS)
def test_bfloat16_computes_with_the_rounded_weights(name: str, tmp_path: Path) -> None:
    """Where inputs stay float32 nothing else is lost; with bf16 dot products they are rounded."""
    ids, exact = golden(name)
    path = golden_models.write_checkpoint(tmp_path / name, name)
    opened = open_model(path)
    reference = select_ops("reference")
    twin = Decoder(opened.spec, Rounded(opened.source), reference)
    expected = run_decoder.logits(twin, reference, ids, len(ids))
    decoder, ops = run_decoder.load(path, backend="cpu", dtype="bfloat16")
    found = run_decoder.logits(decoder, ops, ids, len(ids))
    rounds_inputs = build_info()["isa"] == "avx512bf16"
    assert worst(found, expected) < (0.05 if rounds_inputs else TOLERANCE)
    assert worst(found, exact) < 0.1


Write = Callable[[Path], Path]
SOURCES: dict[str, Write] = {
    "float32": lambda path: golden_models.write_checkpoint(path, "llama"),
    "bfloat16": lambda path: golden_models.write_checkpoint(path, "qwen2_bf16"),
    "float16": lambda path: golden_models.write_checkpoint(path, "llama_tied_yarn_f16"),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_the_planned_bytes_are_the_packed_ones(source: str, dtype: str, tmp_path: Path) -> None:
    path = SOURCES[source](tmp_path / "m")
    opened = open_model(path)
    ops = select_ops("cpu", dtype=dtype)
    held = 0
    pack, vector = ops.pack, ops.vector

    def packed(*weights: Any, **options: Any) -> Any:
        nonlocal held
        weight = pack(*weights, **options)
        held += weight.bytes
        return weight

    def plain(weight: RawWeight) -> Any:
        nonlocal held
        array = vector(weight)
        held += array.nbytes
        return array

    ops.pack, ops.vector = packed, plain  # type: ignore[method-assign]
    Decoder(opened.spec, opened.source, ops)
    info = sized(inspect(path), backend="cpu", dtype=dtype)
    assert info.weight_bytes == held
    options = Options(model=str(path), backend="cpu", dtype=dtype)
    memory = plan(options, inspect(path), inspect_machine())
    assert memory.ledger()[0].bytes == held


@pytest.mark.parametrize("kept", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("head_dim", [20, 64, 80])
def test_the_planned_cache_is_the_allocated_one(kept: str, head_dim: int, tmp_path: Path) -> None:
    model = replace(inspect(SOURCES["bfloat16"](tmp_path / "m")), head_dim=head_dim)
    planned = sized(model, backend="cpu", kv_cache_dtype=kept).kv_bytes_per_token
    layout = CacheLayout(32, (model.layers,), model.kv_heads, head_dim, kept)
    held = select_ops("cpu").allocate_cache(layout, [3]).block_bytes(0)
    assert bytes_per_block(layout, padded=True) == held == 32 * planned


def test_the_cache_follows_the_options(tmp_path: Path) -> None:
    path = write_tiny_random(tmp_path / "m", "llama", 1)
    found = {}
    for dtype, kept, expected in (
        ("auto", "auto", "bfloat16"),
        ("float32", "auto", "float32"),
        ("bfloat16", "float32", "float32"),
        ("auto", "int8", "int8"),
    ):
        loaded = load(config(path, dtype=dtype, kv_cache_dtype=kept))
        assert loaded.notes["kv_dtype"] == expected
        found[dtype, kept] = loaded.fingerprint
    assert len(set(found.values())) == 4
    assert load(config(path, backend="reference")).notes["kv_dtype"] == "float32"
    with pytest.raises(ModelError, match="reference backend takes auto, float32"):
        load(config(path, backend="reference", kv_cache_dtype="int8"))
    with pytest.raises(ModelError, match="multiples of 16") as refused:
        load(config(path, block_size=24))
    assert "--block-size 32" in refused.value.hint


def test_a_reference_plan_counts_float32(tmp_path: Path) -> None:
    info = inspect(SOURCES["bfloat16"](tmp_path / "m"))
    assert sized(info, backend="reference") == info
    matrices = [s for s in expected_shapes(open_model(info.path).spec).values() if len(s) == 2]
    counted = sum(n * pack.inputs * pack.count for pack in info.packs for _, n in pack.parts)
    assert counted == sum(rows * columns for rows, columns in matrices)


def config(path: Path, **fields: Any) -> EngineConfig:
    return load_config(path, **{"backend": "cpu", "max_model_len": 64, "num_blocks": 8, **fields})


def test_what_packing_loses_is_said_once(tmp_path: Path) -> None:
    half = SOURCES["float16"](tmp_path / "half")
    assert load(config(half)).notes["losses"] == ["float16 weights are rounded to bfloat16"]
    assert load(config(half, dtype="float32")).notes["losses"] == []
    brain = SOURCES["bfloat16"](tmp_path / "brain")
    assert load(config(brain)).notes["losses"] == []


def test_the_fingerprint_tells_packings_apart_but_not_threads(tmp_path: Path) -> None:
    path = write_tiny_random(tmp_path / "m", "llama", 1)
    prints = {load(config(path, **fields)).fingerprint for fields in (
        {}, {"dtype": "bfloat16"}, {"backend": "reference"},
    )}  # fmt: skip
    assert len(prints) == 3
    assert load(config(path, threads=3, num_blocks=9)).fingerprint in prints


def test_a_dtype_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = write_tiny_random(tmp_path / "m")
    with pytest.raises(ModelError, match="takes auto, bfloat16, float32"):
        load(config(path, dtype="float16"))
    with pytest.raises(ModelError, match="reference backend takes auto, float32"):
        load(config(path, backend="reference", dtype="bfloat16"))
    with pytest.raises(ModelError, match="kv_cache_dtype is 'fp8'"):
        load(config(path, kv_cache_dtype="fp8"))


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)
