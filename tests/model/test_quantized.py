"""Quantised safetensors give what their dequantised twins give: exactly in float32, and but for the
rounding of activations on packed codes. Cases E06, E01 (d), H03."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from octavo.model.decoder import Decoder
from octavo.model.errors import ModelError
from octavo.model.registry import inspect, open_model
from octavo.model.runner import load
from octavo.model.sizes import sized
from octavo.ops import RawWeight
from octavo.ops.native import build_info, native_reason
from octavo.ops.select import select_ops
from support import golden_families, native_isas, run_decoder
from support import quantized_files as files
from support.load_config import load_config
from support.quantized_cases import awq, gptq
from support.tiny_models import write_tiny_random

IDS = np.random.default_rng(7).integers(0, 500, 41).tolist()
TOLERANCE = 0.05
"""Twice what two layers of eight products lose by activations of 8 bits: each some 0.7 %."""
WRONG = 0.3
"""What a misread checkpoint is off by at least."""

needs_kernels = pytest.mark.skipif(not build_info(), reason=native_reason() or "no kernels")


def compressed(
    kind: str, bits: int, strategy: str, group: int, symmetric: bool, **more: Any
) -> Any:
    numbers = "float" if kind == "float-quantized" else "int"
    weights = {
        "num_bits": bits,
        "type": numbers,
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": group if strategy == "group" else None,
        "dynamic": False,
        **more,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def integers(kind: str, bits: int, strategy: str, group: int, symmetric: bool, act: bool) -> Any:
    def make(name: str, matrix: np.ndarray) -> Any:
        size = group if strategy == "group" else -1
        seed = 5 if act else None
        m = files.rounded(matrix, bits, size, symmetric, shuffle=seed, scales=np.float32)
        m.scales = (m.scales.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        if kind == "int-quantized":
            return files.int_quantized(symmetric)(m), m.weights
        return files.pack_quantized(bits, symmetric, act, brain=True)(m), m.weights

    return make, compressed(kind, bits, strategy, group, symmetric)


def fp8(layout: str, name_of_scale: str, settings: dict[str, Any]) -> Any:
    def make(name: str, matrix: np.ndarray) -> Any:
        outputs, inputs = matrix.shape
        high, wide = {
            "tensor": (outputs, inputs), "channel": (1, inputs), "group": (1, 32), "block": (48, 80)
        }[layout]  # fmt: skip
        rng = np.random.default_rng(outputs)
        shape = (-(-outputs // high), -(-inputs // wide))
        scales = rng.uniform(0.001, 0.002, shape).astype(np.float32)
        bits = rng.integers(0, 256, matrix.shape).astype(np.uint8)
        bits[bits & 127 == 127] = 0
        each = np.repeat(np.repeat(scales, high, axis=0), wide, axis=1)[:outputs, :inputs]
        stored = scales.reshape(()) if layout == "tensor" else scales
        return {"weight": bits, name_of_scale: stored}, e4m3(bits) * each

    return make, settings


def e4m3(bits: np.ndarray) -> np.ndarray:
    """By the definition: 1.mmm * 2^(e - 7), and 0.mmm * 2^-6 where e is 0."""
    values = []
    for code in range(256):
        sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
        size = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
        values.append(-size if sign else size)
    found: np.ndarray = np.array(values, np.float32)[bits]
    return found


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
CASES: dict[str, Callable[[], Any]] = {
    "gptq-4-32": lambda: gptq(4, 32, True),
    "gptq-4-128-zeros": lambda: gptq(4, 128, False),
    "gptq-4-all": lambda: gptq(4, -1, True),
    "gptq-4-64-act": lambda: gptq(4, 64, True, act=True),
    "gptq-4-32-act-zeros-v2": lambda: gptq(4, 32, False, act=True, version=2),
    "gptq-4-48": lambda: gptq(4, 48, True),
    "gptq-8-128": lambda: gptq(8, 128, True),
    "gptq-8-all": lambda: gptq(8, -1, True),
    "gptq-8-32-zeros-act": lambda: gptq(8, 32, False, act=True),
    "gptq-8-all-zeros-v2": lambda: gptq(8, -1, False, version=2),
    "awq-128": lambda: awq(128),
    "awq-32": lambda: awq(32),
    "awq-all": lambda: awq(-1),
    "w4a16-group": lambda: integers("pack-quantized", 4, "group", 32, True, False),
    "w4a16-group-act": lambda: integers("pack-quantized", 4, "group", 64, True, True),
    "w4a16-channel-zeros": lambda: integers("pack-quantized", 4, "channel", 0, False, False),
    "w8a16-group-zeros": lambda: integers("pack-quantized", 8, "group", 128, False, False),
    "w8a8-channel": lambda: integers("int-quantized", 8, "channel", 0, True, False),
    "w8a8-channel-zeros": lambda: integers("int-quantized", 8, "channel", 0, False, False),
    "w8a8-group": lambda: integers("int-quantized", 8, "group", 32, True, False),
    "fp8-tensor": lambda: fp8("tensor", "weight_scale", FP8),
    "fp8-channel": lambda: fp8("channel", "weight_scale", FP8),
    "fp8-block": lambda: fp8("block", "weight_scale_inv", {**FP8, "weight_block_size": [48, 80]}),
    "float-quantized-channel": lambda: fp8(
        "channel", "weight_scale", compressed("float-quantized", 8, "channel", 0, True)
    ),
    "float-quantized-group": lambda: fp8(
        "group", "weight_scale", compressed("float-quantized", 8, "group", 32, True)
    ),
    "float-quantized-block": lambda: fp8(
        "block",
        "weight_scale",
        compressed("float-quantized", 8, "block", 0, True, block_structure=[48, 80]),
    ),
}
EXACT = ("gptq", "awq", "w4", "w8")
FLOATS = ("gptq-4-48",)
"""Of those, what no kernel has as codes."""


def write(tmp_path: Path, case: str, family: str = "llama", **options: Any) -> tuple[Path, Path]:
    make, settings = CASES[case]()
    return pair(tmp_path, make, settings, family, **options)


def pair(
    tmp_path: Path, make: Any, settings: dict[str, Any], family: str = "llama", **options: Any
) -> tuple[Path, Path]:
    tied = options.pop("tied", False)
    source = write_tiny_random(tmp_path / "source", family, 3, hidden=128, tied=tied)
    return files.write_pair(tmp_path, source, make, settings, **options)


def logits(path: Path, ids: list[int] = IDS, **options: Any) -> np.ndarray:
    decoder, ops = run_decoder.load(path, **options)
    return run_decoder.logits(decoder, ops, ids, len(ids))


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Root of the mean square, relative."""
    return float(np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("case", CASES)
def test_e06_logits_are_the_twins_in_float32(case: str, family: str, tmp_path: Path) -> None:
    coded, plain = write(tmp_path, case, family)
    assert np.array_equal(logits(coded, row_at_a_time=True), logits(plain, row_at_a_time=True))
    if build_info():
        exact = {"backend": "cpu", "dtype": "float32"}
        assert logits(coded, **exact).tobytes() == logits(plain, **exact).tobytes()


@needs_kernels
@pytest.mark.parametrize("case", CASES)
def test_e06_packed_codes_lose_only_what_activations_do(case: str, tmp_path: Path) -> None:
    coded, plain = write(tmp_path, case)
    expected = logits(plain, backend="cpu", dtype="float32")
    found = logits(coded, backend="cpu")
    assert 0 < error(found, expected) < TOLERANCE
    decoder, ops = run_decoder.load(coded, backend="cpu", threads=2)
    for piece in (7, 1):
        assert run_decoder.logits(decoder, ops, IDS, piece).tobytes() == found.tobytes()
    kept = case.startswith(EXACT) and case not in FLOATS
    assert bool(ops.notes) != kept, ops.notes
    brain = logits(coded, backend="cpu", dtype="bfloat16")
    assert 0 < error(brain, expected) < TOLERANCE


@needs_kernels
@pytest.mark.parametrize("case", CASES)
def test_the_planned_bytes_are_the_packed_ones(case: str, tmp_path: Path) -> None:
    coded, _ = write(tmp_path, case)
    for dtype in ("auto", "float32"):
        held = 0
        opened, ops = open_model(coded), select_ops("cpu", dtype=dtype)
        pack, vector = ops.pack, ops.vector

        def packed(*weights: Any, pack: Any = pack, **options: Any) -> Any:
            nonlocal held
            weight = pack(*weights, **options)
            held += _bytes(weight)
            return weight

        def plain(weight: RawWeight, vector: Any = vector) -> Any:
            nonlocal held
            held += 4 * weight.shape[0]
            return vector(weight)

        ops.pack, ops.vector = packed, plain  # type: ignore[method-assign]
        Decoder(opened.spec, opened.source, ops)
        planned = sized(inspect(coded), backend="cpu", dtype=dtype).weight_bytes
        # Planned for the instruction set that pads most.
        assert held <= planned <= held * 1.05


def _bytes(weight: Any) -> int:
    return int(weight.nbytes if hasattr(weight, "nbytes") else weight.bytes)


# What is wrong shows


def differs(coded: Path, plain: Path) -> float:
    return error(logits(coded), logits(plain))


def settings_of(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] |= changes
    (path / "config.json").write_text(json.dumps(config))


def test_e06_a_wrong_version_of_zeros_shows(tmp_path: Path) -> None:
    coded, plain = write(tmp_path, "gptq-4-128-zeros")
    assert differs(coded, plain) < 1e-4
    settings_of(coded, checkpoint_format="gptq_v2")
    assert differs(coded, plain) > WRONG


@pytest.mark.parametrize("case", ["gptq-4-32", "gptq-8-128"])
def test_e06_a_wrong_version_of_symmetric_zeros_is_refused(case: str, tmp_path: Path) -> None:
    coded, _ = write(tmp_path, case)
    settings_of(coded, checkpoint_format="gptq_v2")
    with pytest.raises(ModelError, match=r"layers\.0\.\S+ \(\d+, 128\): a symmetric") as caught:
        logits(coded)
    assert "checkpoint_format" in caught.value.hint


@pytest.mark.parametrize("order", [tuple(range(8)), (0, 4, 1, 5, 2, 6, 3, 7)])
def test_e06_a_wrong_order_of_bits_shows(order: tuple[int, ...], tmp_path: Path) -> None:
    coded, plain = pair(tmp_path, *awq(32, order))
    assert differs(coded, plain) > WRONG


@pytest.mark.parametrize("wrong", [64, 16, -1])
@pytest.mark.parametrize("case", ["gptq-4-32", "awq-32"])
def test_e06_a_wrong_group_size_is_refused_naming_module_shape_and_group(
    case: str, wrong: int, tmp_path: Path
) -> None:
    coded, _ = write(tmp_path, case)
    settings_of(coded, group_size=wrong)
    with pytest.raises(ModelError) as caught:
        inspect(coded)
    assert caught.value.code == "bad_tensors"
    assert "model.layers.0.self_attn.q_proj.scales (4, 128) instead of" in str(caught.value)
    assert f"groups of {'all' if wrong == -1 else wrong}" in caught.value.hint


def test_e06_codes_of_another_width_are_refused(tmp_path: Path) -> None:
    coded, _ = write(tmp_path, "gptq-4-32")
    settings_of(coded, bits=8)
    with pytest.raises(ModelError, match="qweight") as caught:
        inspect(coded)
    assert caught.value.code == "bad_tensors"


# Group indices


def with_index(index: Callable[[files.Rounded], np.ndarray | None], group: int = 32) -> Any:
    _, settings = gptq(4, group, True)

    def make(name: str, matrix: np.ndarray) -> Any:
        m = files.rounded(matrix, 4, group, True)
        tensors = files.gptq(4)(m)
        changed = index(m)
        del tensors["g_idx"]
        if changed is not None:
            tensors["g_idx"] = changed.astype(np.int32)
        return tensors, m.weights

    return make, settings


@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("index", [lambda m: None, lambda m: m.index * 0])
def test_e06_a_group_index_may_be_missing_or_all_zero(
    index: Any, group: int, tmp_path: Path
) -> None:
    coded, plain = pair(tmp_path, *with_index(index, group))
    assert np.array_equal(logits(coded, row_at_a_time=True), logits(plain, row_at_a_time=True))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (lambda m: np.maximum(m.index, 1), r"puts 0 inputs in group 0; groups have 32"),
        (lambda m: m.index + 1, "g_idx goes from 1 to 4, but there are 4 groups"),
        (lambda m: m.index - 1, "g_idx goes from -1 to 2, but there are 4 groups"),
    ],
)
def test_e06_a_group_index_that_cannot_be_is_refused(
    index: Any, words: str, tmp_path: Path
) -> None:
    coded, _ = pair(tmp_path, *with_index(index))
    with pytest.raises(ModelError, match=words) as caught:
        logits(coded)
    assert caught.value.code == "bad_quantization"


# What stays as it is


@pytest.mark.parametrize("case", ["gptq-4-32", "awq-128", "w8a8-channel", "fp8-channel"])
def test_e06_modules_may_stay_floats(case: str, tmp_path: Path) -> None:
    coded, plain = write(tmp_path, case, keep=("o_proj", "k_proj"))
    settings_of(coded, modules_to_not_convert=["o_proj", "k_proj"])
    assert np.array_equal(logits(coded, row_at_a_time=True), logits(plain, row_at_a_time=True))
    if build_info():
        expected = logits(plain, backend="cpu", dtype="float32")
        assert 0 < error(logits(coded, backend="cpu"), expected) < TOLERANCE


@pytest.mark.parametrize("case", ["gptq-4-32", "awq-32"])
@pytest.mark.parametrize("equal", [True, False])
def test_e01_tied_with_a_head_of_its_own(case: str, equal: bool, tmp_path: Path) -> None:
    coded, plain = write(tmp_path, case, tied=True)
    path = coded / "model.safetensors"
    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"].astype(np.float16)
    tensors["lm_head.weight"] = head if equal else head[::-1]
    files.save(path, tensors)
    assert np.array_equal(logits(coded, row_at_a_time=True), logits(plain, row_at_a_time=True))


def test_e01_a_quantised_head(tmp_path: Path) -> None:
    """lm_head: true. Its planned bytes are the quantised ones."""
    make, settings = gptq(4, 32, True)
    coded, plain = pair(tmp_path, make, {**settings, "lm_head": True})
    small = sized(inspect(coded), backend="cpu").weight_bytes if build_info() else 0
    for path in (coded, plain):
        tensors = load_file(path / "model.safetensors")
        packed, weights = make("head", tensors.pop("lm_head.weight"))
        if path == coded:
            tensors |= {f"lm_head.{suffix}": value for suffix, value in packed.items()}
        else:
            tensors["lm_head.weight"] = weights
        files.save(path / "model.safetensors", tensors)
    assert np.array_equal(logits(coded, row_at_a_time=True), logits(plain, row_at_a_time=True))
    if build_info():
        assert sized(inspect(coded), backend="cpu").weight_bytes < small


def test_e06_biases_of_zero_and_scales_of_activations_are_not_in_the_way(tmp_path: Path) -> None:
    make, settings = gptq(4, 32, True)
    coded, plain = pair(
        tmp_path / "a", make, settings, extra=lambda name: {"bias": np.zeros(3, np.float16)}
    )
    assert np.array_equal(logits(coded, row_at_a_time=True), logits(plain, row_at_a_time=True))
    coded, _ = pair(
        tmp_path / "b", make, settings, extra=lambda name: {"bias": np.ones(3, np.float16)}
    )
    with pytest.raises(ModelError, match="14 extra: "):
        inspect(coded)
    make, settings = integers("int-quantized", 8, "channel", 0, True, False)
    scale = np.ones(1, np.float32)
    coded, plain = pair(tmp_path / "c", make, settings, extra=lambda name: {"input_scale": scale})
    assert np.array_equal(logits(coded, row_at_a_time=True), logits(plain, row_at_a_time=True))


@pytest.mark.parametrize("file", ["quantize_config.json", "quant_config.json"])
def test_e06_settings_may_be_in_a_file_of_their_own(file: str, tmp_path: Path) -> None:
    if file == "quantize_config.json":
        make, settings = gptq(4, 64, False, act=True)
        del settings["quant_method"], settings["checkpoint_format"]
    else:
        make, _ = awq(64)
        settings = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
    coded, plain = pair(tmp_path, make, settings, settings_file=file)
    assert np.array_equal(logits(coded, row_at_a_time=True), logits(plain, row_at_a_time=True))
    (coded / file).unlink()
    with pytest.raises(ModelError) as caught:
        inspect(coded)
    assert "no quantization_config" in caught.value.hint


@pytest.mark.parametrize("case", ["gptq-4-32-act-zeros-v2", "awq-32", "fp8-channel", "fp8-block"])
def test_e06_a_module_may_hold_several_matrices(case: str, tmp_path: Path) -> None:
    """GPT-NeoX: queries, keys and values interleaved head by head, with biases."""
    with np.load(golden_families.GOLDEN / "gpt_neox.npz") as kept:
        shapes = json.loads(str(kept["shapes"]))
    config = {**golden_families.CONFIGS["gpt_neox"], "intermediate_size": 128}
    wide = {name: [128 if n == 112 else n for n in shape] for name, shape in shapes.items()}
    source = golden_families.write_checkpoint(tmp_path / "source", config, wide)
    make, settings = CASES[case]()
    modules = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
    coded, plain = files.write_pair(tmp_path, source, make, settings, modules=modules)
    ids = [i % 97 for i in IDS]
    expected = logits(plain, ids, row_at_a_time=True)
    assert np.array_equal(logits(coded, ids, row_at_a_time=True), expected)
    if build_info():
        assert 0 < error(logits(coded, ids, backend="cpu"), expected) < TOLERANCE


def test_e06_facts_name_the_quantisation(tmp_path: Path) -> None:
    coded, plain = write(tmp_path, "awq-128")
    assert inspect(coded).quantization == "awq, 4 bits, groups of 128, with zeros"
    assert inspect(coded).parameters == inspect(plain).parameters


@needs_kernels
@pytest.mark.parametrize("case", ["gptq-4-128-zeros", "gptq-8-128", "fp8-channel"])
def test_h03_a_dtype_is_honoured_or_refused_by_name(case: str, tmp_path: Path) -> None:
    coded, _ = write(tmp_path, case)
    small = {"backend": "cpu", "max_model_len": 64, "num_blocks": 8}
    for dtype in ("auto", "bfloat16", "float32"):
        assert load(load_config(coded, dtype=dtype, **small)).fingerprint
    with pytest.raises(ModelError, match="float16"):
        load(load_config(coded, dtype="float16", **small))
    notes = load(load_config(coded, dtype="bfloat16", **small)).notes["losses"]
    assert any("are rounded to bfloat16" in note for note in notes)


def test_the_fingerprint_tells_scales_and_settings_apart(tmp_path: Path) -> None:
    coded, _ = write(tmp_path, "gptq-4-128-zeros")
    prints = {load(load_config(coded, backend="reference")).fingerprint}
    settings_of(coded, checkpoint_format="gptq_v2")
    prints.add(load(load_config(coded, backend="reference")).fingerprint)
    tensors = load_file(coded / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.scales"] *= 2
    files.save(coded / "model.safetensors", tensors)
    prints.add(load(load_config(coded, backend="reference")).fingerprint)
    assert len(prints) == 3


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa, "-k", "packed_codes")
