"""Packed codes against arithmetic on the weights that they stand for, and their promise to the
last bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from octavo.ops import RawWeight, native
from octavo.ops.cpu import CpuOps
from octavo.ops.cpu_codes import CodeWeight, pack, quantize_int4, quantize_int8
from octavo.ops.packing import CODE_FORMATS, code_bytes, code_format
from support import native_isas
from support.grouped import grouped

NATIVE: Any = native.load_native()[0]
pytestmark = pytest.mark.skipif(NATIVE is None, reason=native.native_reason() or "no kernels")

BLOCKS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
}
"""Weights and bytes of a block."""
MINIMA = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
SHAPES = [(1, 256), (5, 512), (16, 256), (37, 768), (130, 1536)]
SMALL_BLOCKS = [(33, 32), (65, 96), (48, 576), (7, 1120)]


def source(name: str, outputs: int, inputs: int, seed: int = 0) -> tuple[RawWeight, Any]:
    """Random blocks of the GGUF type, all codes and sub-scales occurring; and their float32."""
    rng = np.random.default_rng(seed + outputs * inputs)
    weights, size = BLOCKS[name]
    rows = rng.integers(0, 256, (outputs, inputs // weights, size), dtype=np.uint8)
    scale = rng.uniform(-0.05, 0.05, rows.shape[:2]).astype(np.float16)
    scale.flat[0] = 2.0**-24  # the least that float16 can say
    at = 208 if name == "Q6_K" else 0
    rows[..., at : at + 2] = scale[..., None].view(np.uint8)
    if name in MINIMA:
        minimum = rng.uniform(-0.5, 0.5, scale.shape).astype(np.float16)
        rows[..., 2:4] = minimum[..., None].view(np.uint8)
    data = rows.reshape(outputs, -1)
    expected = quants.dequantize(data, GGMLQuantizationType[name])
    return RawWeight("w", (outputs, inputs), f"gguf:{name}", data, lambda: expected), expected


def floats(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def plain(values: Any) -> RawWeight:
    return RawWeight("w", values.shape, "f32", values, lambda: values)


def everything(weight: CodeWeight, pool: Any) -> Any:
    """All rows of the weight's one matrix, as floats."""
    return weight.embed(np.arange(weight.parts[0].outputs), pool)


def rounded(x: Any, whole: bool = False) -> Any:
    """What a product makes of its activations, as float64: int8 times a scale for 64 inputs
    (`whole`: a channel of weights has one scale), or for 32, times a multiplier for each 16."""
    rows, inputs = x.shape
    span, half = (64, 64) if whole else (32, 16)
    padded = np.pad(x, ((0, 0), (0, -inputs % span)))
    groups = padded.reshape(rows, padded.shape[1] // span, span // half, half)
    each = np.abs(groups).max(axis=3, keepdims=True)
    largest = each.max(axis=2, keepdims=True)
    empty = largest < 1e-30
    finest = np.float32(127) / np.where(empty, np.float32(1), largest)
    multipliers = np.clip(np.ceil(each * finest), 1, 127)
    if whole:
        scale, multipliers = largest / np.float32(127), np.ones_like(multipliers)
        inverse = finest
    else:
        scale = largest * np.float32(1 / 127**2)
        inverse = np.float32(127) * finest * (np.float32(1) / multipliers)
    codes = np.where(empty, 0, np.rint(groups * inverse)).astype(np.float64)
    assert np.abs(codes).max(initial=0) <= 127
    return (codes * multipliers * scale).reshape(padded.shape)[:, :inputs]


def check_product(weight: CodeWeight, held: Any, x: Any, pool: Any, whole: bool = False) -> None:
    inputs = rounded(x, whole)
    expected = inputs @ held.astype(np.float64).T
    # The sum's terms are as large as codes without their zero or minimum make them.
    size = np.abs(inputs).sum(axis=1, keepdims=True) * np.abs(held).max() * 16
    assert (np.abs(weight.linear(x, pool) - expected) <= size * 2**-22 + 1e-30).all()


@pytest.mark.parametrize("name", BLOCKS)
def test_gguf_codes_are_repacked_without_loss_and_multiplied(name: str) -> None:
    pool = NATIVE.Pool(2)
    shapes = SHAPES + (SMALL_BLOCKS if BLOCKS[name][0] == 32 else [])
    for outputs, inputs in shapes:
        raw, expected = source(name, outputs, inputs)
        weight = pack(NATIVE, [raw])
        assert np.array_equal(everything(weight, pool), expected)
        assert weight.nbytes <= code_bytes(name, outputs, inputs)
        rng = np.random.default_rng(inputs)
        for rows in (0, 1, 2, 3, 4, 5, 9):
            check_product(weight, expected, floats(rng, rows, inputs), pool)


@pytest.mark.parametrize("name", BLOCKS)
def test_extreme_codes_do_not_overflow(name: str) -> None:
    """All codes at their ends, against activations of one sign and of both."""
    pool, (weights, size) = NATIVE.Pool(1), BLOCKS[name]
    inputs = 512
    for fill in (0, 255):
        rows = np.full((16, inputs // weights, size), fill, np.uint8)
        one = np.float16(1.0).reshape(1).view(np.uint8)
        at = 208 if name == "Q6_K" else 0
        rows[..., at : at + 2] = one
        if name in MINIMA:
            rows[..., 2:4] = one
        data = rows.reshape(16, -1)
        held = quants.dequantize(data, GGMLQuantizationType[name])
        weight = pack(NATIVE, [RawWeight("w", held.shape, f"gguf:{name}", data, held.copy)])
        signs = np.where(np.arange(inputs) % 2, -1.0, 1.0)
        x = np.stack([np.ones(inputs), -np.ones(inputs), signs]).astype(np.float32)
        check_product(weight, held, x, pool)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(1, 1), (3, 31), (33, 32), (40, 100), (129, 577), (64, 1536)]
)
def test_rounded_floats_are_multiplied(kind: str, outputs: int, inputs: int) -> None:
    rng, pool = np.random.default_rng(inputs), NATIVE.Pool(2)
    values = floats(rng, outputs, inputs)
    weight = pack(NATIVE, [plain(values)], quantize=kind)
    held = everything(weight, pool)
    step = np.abs(values).max(axis=1) / 127 if kind == "int8" else np.ptp(values, axis=1) / 15
    assert (np.abs(held - values).max(axis=1) <= step * 0.52 + 2e-3).all()
    assert weight.nbytes <= code_bytes(kind, outputs, inputs)
    for rows in (1, 4, 7):
        check_product(weight, held, floats(rng, rows, inputs), pool, whole=kind == "int8")


def test_rounding_keeps_what_it_can_say_exactly() -> None:
    codes, scales = quantize_int8(np.array([[127.0, -127.0, 3.0], [0, 0, 0]], np.float32))
    assert codes.tolist() == [[255, 1, 131], [128, 128, 128]]
    assert scales.tolist() == [[1.0], [0.0]]
    ramp = np.arange(32, dtype=np.float32)[None] // 2 - 4
    codes4, scales4, minima = quantize_int4(ramp)
    assert (codes4 * scales4 + minima == ramp).all()
    assert quantize_int4(np.full((1, 5), 2.5, np.float32))[0].tolist() == [[0] * 5]
    for wrong in (np.nan, np.inf):
        bad = np.array([[1.0, wrong]], np.float32)
        for rounding in (quantize_int8, quantize_int4):
            with pytest.raises(ValueError, match="not finite"):
                rounding(bad)


def formats() -> list[str]:
    return list(CODE_FORMATS)


def weight_of(name: str, outputs: int, inputs: int) -> CodeWeight:
    if name in BLOCKS:
        return pack(NATIVE, [source(name, outputs, inputs)[0]])
    if name.startswith("uint"):
        return pack(NATIVE, [grouped(name, outputs, inputs, 64)[0]])
    values = floats(np.random.default_rng(1), outputs, inputs)
    return pack(NATIVE, [plain(values)], quantize=name)


@pytest.mark.parametrize("name", formats())
def test_a_row_has_the_same_bits_in_any_batch_on_any_threads(name: str) -> None:
    rng = np.random.default_rng(3)
    weight = weight_of(name, 147, 768)
    x = floats(rng, 131, 768) * rng.uniform(0.01, 100, (131, 1)).astype(np.float32)
    pools = [NATIVE.Pool(n) for n in (1, 2, 3)]
    whole = weight.linear(x, pools[0])
    for pool in pools:
        assert np.array_equal(weight.linear(x, pool), whole)
        cuts = [0, *sorted(rng.choice(np.arange(1, 131), 9, replace=False)), 131]
        for begin, end in pairwise(cuts):
            assert np.array_equal(weight.linear(x[begin:end], pool), whole[begin:end])
    for i in (0, 63, 64, 130):
        assert np.array_equal(weight.linear(x[i : i + 1], pools[1])[0], whole[i])
    order = rng.permutation(131)
    assert np.array_equal(weight.linear(x[order], pools[1]), whole[order])


@pytest.mark.parametrize("name", formats())
def test_an_outlier_costs_its_neighbours_little(name: str) -> None:
    """Of what 16 inputs (64 where a channel has one scale) beside it would lose, no more."""
    pool = NATIVE.Pool(1)
    weight = weight_of(name, 64, 512)
    held = everything(weight, pool).astype(np.float64)
    x = floats(np.random.default_rng(8), 3, 512)
    x[:, ::32] *= 100
    spoilt = 64 if name == "int8" else 16
    near = np.abs(x).reshape(3, -1, spoilt).max(axis=2, keepdims=True) / 254
    step = np.repeat(near[..., 0] + np.abs(x).max() / 127**2 / 2, spoilt, axis=1)
    error = np.abs(weight.linear(x, pool) - x @ held.T)
    assert (error <= step @ np.abs(held).T + 1e-3).all()
    assert error.mean() < 0.1 * (step @ np.abs(held).T).mean()


@pytest.mark.parametrize("name", formats())
def test_what_is_not_finite_spoils_its_own_row_alone(name: str) -> None:
    rng, pool = np.random.default_rng(4), NATIVE.Pool(1)
    weight = weight_of(name, 20, 256)
    x = floats(rng, 6, 256)
    clean = weight.linear(x, pool)
    x[1, 7], x[3, 200], x[4, 0] = np.nan, np.inf, -np.inf
    spoilt = weight.linear(x, pool)
    assert np.isnan(spoilt[[1, 3, 4]]).all()
    assert np.array_equal(spoilt[[0, 2, 5]], clean[[0, 2, 5]])
    nothing = np.zeros((1, 256), np.float32)
    assert (weight.linear(nothing, pool) == 0).all()
    assert (weight.linear(nothing + np.float32(1e-38), pool) == 0).all()


def test_formats_stack_with_biases_as_they_would_apart() -> None:
    rng, pool = np.random.default_rng(5), NATIVE.Pool(2)
    raws = [source(name, n, 512)[0] for name, n in (("Q4_K", 50), ("Q4_K", 20), ("Q6_K", 35))]
    bias = [plain(floats(rng, n)) for n in (50, 20, 35)]
    x = floats(rng, 5, 512)
    stacked = pack(NATIVE, raws, bias)
    assert [part.outputs for part in stacked.parts] == [70, 35]
    apart = [pack(NATIVE, [raw], [b]).linear(x, pool) for raw, b in zip(raws, bias, strict=True)]
    assert np.array_equal(stacked.linear(x, pool), np.concatenate(apart, axis=1))
    bare = pack(NATIVE, raws).linear(x, pool)
    assert np.array_equal(stacked.linear(x, pool), bare + np.concatenate([b.data for b in bias]))


def test_the_backend_keeps_codes_and_stacks_them_with_floats() -> None:
    rng = np.random.default_rng(6)
    code, held = source("Q4_1", 24, 64)
    values = floats(rng, 10, 64)
    x = floats(rng, 3, 64)
    ops = CpuOps(threads=2)
    assert np.array_equal(ops.pack([code]).embed(np.arange(24), NATIVE.Pool(1)), held)
    assert ops.notes == []
    mixed = ops.linear(x, ops.pack([code, plain(values)], [plain(held[:, 0]), plain(values[:, 0])]))
    assert np.allclose(mixed[:, :24], rounded(x) @ held.T + held[:, 0], atol=1e-4)
    assert np.allclose(mixed[:, 24:], x @ values.T + values[:, 0], atol=1e-4)
    exact = CpuOps(dtype="float32")
    assert np.allclose(exact.linear(x, exact.pack([code])), x @ held.T, atol=1e-4)
    small = CpuOps(quantize="int8")
    small.pack([plain(values)])
    assert small.notes == ["float32 weights are rounded to int8"]
    assert len({ops.identity, exact.identity, small.identity}) == 3
    with pytest.raises(ValueError, match="one of none, int8, int4"):
        CpuOps(quantize="int2")
    with pytest.raises(ValueError, match="goes with dtype auto"):
        CpuOps(quantize="int4", dtype="float32")


def test_which_weights_become_codes() -> None:
    assert code_format("gguf:Q4_K") == "Q4_K"
    assert code_format("gguf:Q4_K", dtype="bfloat16") is None
    assert code_format("gguf:Q2_K") is None
    assert code_format("bf16") is None and code_format("bf16", quantize="int4") == "int4"
    assert code_format("gguf:int8") is None
    assert code_format("gguf:Q8_0", quantize="int4") == "Q8_0"


def test_malformed_sizes_raise() -> None:
    matrix = NATIVE.CodeMatrix("Q4_0", 10, 64)
    pool = NATIVE.Pool(1)
    good = np.zeros((10, 36), np.uint8)
    matrix.put_source(0, good)
    for call, message in (
        (lambda: NATIVE.CodeMatrix("Q3_X", 1, 32), "not a format"),
        (lambda: NATIVE.CodeMatrix("Q4_0", 1, 33), "blocks of 32"),
        (lambda: NATIVE.CodeMatrix("Q6_K", 1, 128), "blocks of 256"),
        (lambda: NATIVE.CodeMatrix("int8", 0, 32), "outputs and inputs"),
        (lambda: NATIVE.CodeMatrix("int8", 1, 65537), "at most 65536"),
        (lambda: matrix.put_source(1, good), "rows 1 to 11 of 10"),
        (lambda: matrix.put_source(0, good[:, :30].copy()), "take 36 bytes, not 30"),
        (lambda: matrix.put_codes(0, good, np.zeros((10, 2), np.float32)), "36 codes"),
        (lambda: matrix.rows(np.array([10]), pool), "id 10 is outside a table of 10"),
        (lambda: matrix.rows(np.array([-1]), pool), "id -1"),
        (lambda: NATIVE.linear_codes(np.zeros((1, 65), np.float32), [matrix], None, pool), "65"),
        (lambda: NATIVE.linear_codes(np.zeros((1, 64), np.float32), [], None, pool), "at least"),
        (
            lambda: NATIVE.linear_codes(
                np.zeros((1, 64), np.float32), [matrix], np.zeros(9, np.float32), pool
            ),
            "9 values for 10",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    four = NATIVE.CodeMatrix("int4", 2, 32)
    scales = np.ones((2, 1), np.float32)
    with pytest.raises(ValueError, match="needs minima"):
        four.put_codes(0, np.zeros((2, 32), np.uint8), scales)
    with pytest.raises(ValueError, match="below 16"):
        four.put_codes(0, np.full((2, 32), 16, np.uint8), scales, scales)
    with pytest.raises(ValueError, match="no source format"):
        four.put_source(0, np.zeros((2, 16), np.uint8))
    with pytest.raises(ValueError, match="differ in their inputs"):
        pack(NATIVE, [source("Q4_0", 2, 32)[0], source("Q4_0", 2, 64)[0]])
    for wrong in (np.zeros((1, 64), np.float64), np.zeros(64, np.float32), None):
        with pytest.raises(TypeError):
            NATIVE.linear_codes(wrong, [matrix], None, pool)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)
