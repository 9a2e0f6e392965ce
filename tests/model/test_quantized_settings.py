"""Which quantisations are refused, before weights are looked at, and in which words. Case E08."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.model.errors import ModelError
from octavo.model.mapped import MappedFiles
from octavo.model.quantized.awq import Awq
from octavo.model.quantized.fp8 import Fp8
from octavo.model.quantized.gptq import Gptq
from octavo.model.quantized.integers import Integers
from octavo.model.quantized.modules import Matrix
from octavo.model.quantized.scheme import Module
from octavo.model.quantized.settings import read_scheme
from octavo.model.safetensors import Entry

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def packed(kind: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    given = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}
    group = {"targets": ["Linear"], "weights": {**given, **weights}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"a": group}}


def read(settings: Any, tmp_path: Path) -> Any:
    return read_scheme(tmp_path, {"quantization_config": settings})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (GPTQ, Gptq(4, 128, True, 1)),
        ({**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"}, Gptq(4, 128, False, 2)),
        ({**GPTQ, "bits": 8, "group_size": -1, "format": "gptq"}, Gptq(8, 0, True, 1)),
        ({**GPTQ, "dynamic": {"-:.*down.*": {}}}, Gptq(4, 128, True, 1)),
        (AWQ, Awq(128)),
        ({**AWQ, "group_size": -1, "version": "GEMM"}, Awq(0)),
        (packed(), Integers(True, 4, 64, True)),
        (packed(symmetric=False, strategy="channel"), Integers(True, 4, 0, False)),
        (packed("int-quantized", num_bits=8, strategy="channel"), Integers(False, 8, 0, True)),
        (packed("naive-quantized", num_bits=8, strategy="tensor"), Integers(False, 8, 0, True)),
        (
            packed("float-quantized", num_bits=8, type="float", strategy="tensor"),
            Fp8("compressed-tensors float-quantized", None),
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Fp8("fp8", (128, 128))),
        ({"quant_method": "FP8", "activation_scheme": "static"}, Fp8("fp8", None)),
        (None, None),
        ({}, None),
    ],
)
def test_settings_make_a_scheme(settings: Any, expected: Any, tmp_path: Path) -> None:
    assert read(settings, tmp_path) == expected


@pytest.mark.parametrize(
    ("settings", "found", "nearest"),
    [
        ({"quant_method": "foo", "bits": 4}, "quant_method 'foo' (4 bits)", "gptq (4 and 8 bits)"),
        ({"load_in_4bit": True}, "quant_method None", "gptq (4 and 8 bits)"),
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes'", "gptq or awq version"),
        ({"quant_method": "fbgemm_fp8"}, "'fbgemm_fp8'", "fp8 version"),
        ({"quant_method": ["gptq"]}, "quant_method ['gptq']", "gptq"),
        ({**GPTQ, "bits": 3}, "gptq with bits 3", "gptq with 4 or 8 bits"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'", "gptq_v2"),
        ({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic", "the same for all"),
        ({**AWQ, "bits": 3}, "awq with bits 3", "awq with 4 bits"),
        ({**AWQ, "version": "gemv"}, "version 'gemv'", "version gemm"),
        ({**AWQ, "zero_point": False}, "zero_point false", "zero_point true"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'", "e4m3"),
        (packed("marlin-24"), "'marlin-24' with int weights of 4 bits", "pack-quantized"),
        (packed("nvfp4-pack-quantized", type="float"), "'nvfp4-pack", "float-quantized"),
        (packed(num_bits=3), "weights of 3 bits", "pack-quantized (4, 8)"),
        (packed("int-quantized"), "'int-quantized' with int weights of 4 bits", "(8 bits)"),
        (packed(strategy="token"), "token", "pack-quantized"),
        (packed() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24", "pack"),
    ],
)
def test_e08_what_is_not_supported_is_named_with_the_nearest(
    settings: Any, found: str, nearest: str, tmp_path: Path
) -> None:
    begun = time.perf_counter()
    with pytest.raises(ModelError) as caught:
        read(settings, tmp_path)
    assert time.perf_counter() - begun < 1
    line = str(caught.value).splitlines()[0]
    assert "config.json: quantization_config has" in line
    assert found in line and nearest in line.partition("not supported")[2]
    assert caught.value.code == "unsupported_quantization"
    assert caught.value.hint


def test_e08_groups_of_different_weights_are_refused(tmp_path: Path) -> None:
    settings = packed()
    settings["config_groups"]["b"] = packed(num_bits=8)["config_groups"]["a"]
    with pytest.raises(ModelError, match="2 groups of different weights"):
        read(settings, tmp_path)
    settings["config_groups"]["b"] = packed()["config_groups"]["a"]
    assert read(settings, tmp_path) == Integers(True, 4, 64, True)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("gptq", "quantization_config is 'gptq', not an object"),
        ({**GPTQ, "bits": "4"}, "bits is '4'"),
        ({**GPTQ, "group_size": 0}, "group_size is 0"),
        ({**GPTQ, "group_size": None}, "group_size is missing"),
        ({**GPTQ, "sym": "yes"}, "sym is 'yes'"),
        ({**AWQ, "bits": None}, "w_bit is missing"),
        (packed() | {"config_groups": {}}, "config_groups is {}"),
        (packed() | {"config_groups": {"a": {"weights": None}}}, "config_groups.a.weights is"),
        (packed(num_bits=None), "config_groups.a.weights: num_bits is missing"),
        (packed(group_size=None), "group_size is missing"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is [128]"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size is [128, 0]"),
    ],
)
def test_settings_that_cannot_be_name_the_key(settings: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read(settings, tmp_path)
    assert named in str(caught.value)
    assert caught.value.code == "bad_config"


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json"])
def test_a_file_of_settings_that_is_no_json_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{")
    with pytest.raises(ModelError, match=name):
        read_scheme(tmp_path, {})


# Modules that a scheme cannot have


def module(outputs: int, inputs: int, **tensors: tuple[str, np.ndarray]) -> Module:
    entries = {
        suffix: Entry(suffix, kind, values.shape, 0, values.nbytes, Path("f"))
        for suffix, (kind, values) in tensors.items()
    }
    return Module("m", outputs, inputs, entries, lambda suffix: tensors[suffix][1])


@pytest.mark.parametrize(
    ("scheme", "outputs", "inputs", "words"),
    [
        (Gptq(4, 32, True), 64, 60, r"m \(64, 60\): 60 inputs are not a multiple of 8"),
        (Gptq(8, 32, True), 66, 64, r"m \(66, 64\): 66 outputs are not a multiple of 4"),
        (Awq(32), 60, 64, r"m \(60, 64\): 60 outputs are not a multiple of 8"),
    ],
)
def test_e06_a_shape_that_words_do_not_fit_is_refused(
    scheme: Any, outputs: int, inputs: int, words: str
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        scheme.parts(module(outputs, inputs))
    assert caught.value.code == "bad_quantization"


def test_a_tensor_of_another_type_is_refused_by_name() -> None:
    floats = ("F32", np.zeros((4, 32), np.float32))
    found = module(32, 32, qweight=floats)
    with pytest.raises(ModelError, match=r"tensor m\.qweight is F32; gptq.* has I32 there"):
        Matrix(Gptq(4, 32, True), found, MappedFiles()).shapes()


@pytest.mark.parametrize("symmetric", [True, False])
def test_what_packed_integers_say_of_themselves_must_be_so(symmetric: bool) -> None:
    words = ("I32", np.zeros((8, 4), np.uint32))
    scale = ("F32", np.ones((8, 1), np.float32))
    zeros = ("I8", np.ones((8, 1), np.int8))
    shape = ("I64", np.array([8, 32]))
    scheme = Integers(True, 4, 0, symmetric)
    tensors = {"weight_packed": words, "weight_scale": scale, "weight_zero_point": zeros}
    good = scheme.weight("w", module(8, 32, weight_shape=shape, **tensors))
    if symmetric:
        with pytest.raises(ModelError, match="called symmetric, but weight_zero_point is not 0"):
            good.dequantize()
    else:
        assert (good.dequantize() == -9).all()
    shape = ("I64", np.array([32, 8]))
    with pytest.raises(ModelError, match=r"m \(8, 32\): weight_shape says \(32, 8\)"):
        scheme.weight("w", module(8, 32, weight_shape=shape, **tensors)).dequantize()
