"""Packed float products and lookups against plain arithmetic, and their promise to the last bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from octavo.ops import RawWeight, native
from octavo.ops.cpu_linear import pack_float
from octavo.ops.packing import loss, packed_bytes, packed_format
from support import native_isas

NATIVE: Any = native.load_native()[0]
pytestmark = pytest.mark.skipif(NATIVE is None, reason=native.native_reason() or "no kernels")

KINDS = ["f32", "bf16"]
SHAPES = [
    (1, 1),
    (3, 2),
    (7, 5),
    (64, 32),
    (65, 33),
    (130, 577),
    (257, 96),
    (576, 1536),
    (1000, 31),
]


def halves(x: np.ndarray) -> np.ndarray:
    """bf16 as uint16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def packed(weights: np.ndarray, kind: str, bias: np.ndarray | None = None) -> Any:
    weight = NATIVE.FloatWeight(*weights.shape, kind)
    weight.pack_floats(0, weights)
    if bias is not None:
        weight.set_bias(bias)
    return weight


def allowed(x: np.ndarray, held: np.ndarray, kind: str) -> np.ndarray:
    """How far sums may be from the exact ones: rounding of sums, and of inputs to bf16."""
    rounds = kind == "bf16" and NATIVE.build_info()["isa"] == "avx512bf16"
    return np.abs(x) @ np.abs(held).T * (2**-8 if rounds else 2**-20) + 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_equal_plain_arithmetic(kind: str, outputs: int, inputs: int) -> None:
    rng = np.random.default_rng(outputs * inputs)
    weights, bias = random(rng, outputs, inputs), random(rng, outputs)
    held = widened(halves(weights)) if kind == "bf16" else weights
    plain, biased = packed(weights, kind), packed(weights, kind, bias)
    pool = NATIVE.Pool(2)
    for rows in (0, 1, 2, 3, 4, 5, 6, 7, 11, 13, 64):
        x = random(rng, rows, inputs)
        expected = x.astype(np.float64) @ held.astype(np.float64).T
        bound = allowed(x, held, kind)
        assert (np.abs(plain.linear(x, pool) - expected) <= bound).all()
        assert (np.abs(biased.linear(x, pool) - expected - bias) <= bound + 1e-5).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), [(65, 33), (321, 576), (96, 1536)])
def test_a_row_has_the_same_bits_in_any_batch_on_any_threads(
    kind: str, outputs: int, inputs: int
) -> None:
    rng = np.random.default_rng(inputs)
    weight = packed(random(rng, outputs, inputs), kind, random(rng, outputs))
    pools = [NATIVE.Pool(n) for n in (1, 2, 3)]
    x = random(rng, 201, inputs)
    alone = np.concatenate([weight.linear(x[i : i + 1], pools[0]) for i in range(len(x))])
    for rows in (2, 3, 4, 5, 6, 7, 8, 12, 13, 64, 201):
        for pool in pools:
            chosen = rng.choice(len(x), rows, replace=False)
            assert weight.linear(x[chosen], pool).tobytes() == alone[chosen].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_packed_in_any_pieces_are_looked_up_exactly(kind: str) -> None:
    rng = np.random.default_rng(1)
    table = random(rng, 203, 37)
    whole, pieces = packed(table, kind), NATIVE.FloatWeight(203, 37, kind)
    cuts = [0, 1, 17, 64, 65, 128, 150, 203]
    for begin, end in rng.permutation(list(pairwise(cuts))):
        pieces.pack_floats(int(begin), table[begin:end])
    ids = rng.integers(0, 203, 50)
    expected = widened(halves(table)) if kind == "bf16" else table
    pool = NATIVE.Pool(2)
    for weight in (whole, pieces):
        assert weight.embed(ids, pool).tobytes() == expected[ids].tobytes()
    assert whole.embed(ids[:0], pool).shape == (0, 37)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_sources_are_packed_without_loss(kind: str) -> None:
    source = np.arange(1 << 16, dtype=np.uint16).reshape(1024, 64)
    weight = NATIVE.FloatWeight(1024, 64, kind)
    weight.pack_halves(0, source)
    found = weight.embed(np.arange(1024), NATIVE.Pool(1))
    assert found.tobytes() == widened(source).tobytes()


def test_floats_are_rounded_to_the_nearest_bf16_and_ties_to_even() -> None:
    values = np.array(
        [[1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7 + 2**-20, 3.4e38, np.inf, 1e-40, -0.0]],
        np.float32,
    )
    found = packed(values, "bf16").embed(np.array([0]), NATIVE.Pool(1))
    expected = [1.0, 1.0, 1 + 2**-6, 1 + 2**-7, np.inf, np.inf]
    assert found[0, :6].tolist() == expected
    assert found.tobytes() == widened(halves(values)).tobytes()
    assert np.isnan(packed(np.full((1, 1), np.nan, np.float32), "bf16").embed(
        np.array([0]), NATIVE.Pool(1)
    )).all()  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_that_is_not_finite_stays_alone(kind: str) -> None:
    rng = np.random.default_rng(3)
    weight = packed(random(rng, 70, 65), kind)
    x = random(rng, 7, 65)
    clean = weight.linear(x, NATIVE.Pool(2))
    x[3, 64] = np.nan
    found = weight.linear(x, NATIVE.Pool(2))
    assert np.isnan(found[3]).all()
    rest = [0, 1, 2, 4, 5, 6]
    assert found[rest].tobytes() == clean[rest].tobytes()


def test_what_does_not_fit_is_refused() -> None:
    weight, pool = NATIVE.FloatWeight(10, 6, "f32"), NATIVE.Pool(1)
    rows = np.zeros((3, 6), np.float32)
    with pytest.raises(ValueError, match="rows of 5 values for 6 inputs"):
        weight.linear(np.zeros((2, 5), np.float32), pool)
    with pytest.raises(ValueError, match="rows of 5 values for 6 inputs"):
        weight.pack_floats(0, np.zeros((2, 5), np.float32))
    for first in (8, 11, 2**62):
        with pytest.raises(ValueError, match="do not fit into 10"):
            weight.pack_floats(first, rows)
        with pytest.raises(ValueError, match="do not fit into 10"):
            weight.pack_halves(first, rows.astype(np.uint16))
    with pytest.raises(ValueError, match="9 values for 10 outputs"):
        weight.set_bias(np.zeros(9, np.float32))
    for wrong in (-1, 10, 2**62):
        with pytest.raises(ValueError, match="outside a table of 10 rows"):
            weight.embed(np.array([0, wrong]), pool)
    with pytest.raises(ValueError, match="it must be f32 or bf16"):
        NATIVE.FloatWeight(1, 1, "f64")
    for outputs, inputs in ((0, 1), (1, 0), (2**31, 1), (1, 2**40)):
        with pytest.raises(ValueError, match="a weight of"):
            NATIVE.FloatWeight(outputs, inputs, "f32")
    for bad in (rows.astype(np.float64), rows.T, rows[0]):
        with pytest.raises(TypeError):
            weight.linear(bad, pool)
        with pytest.raises(TypeError):
            weight.pack_floats(0, bad)
    with pytest.raises(TypeError):
        weight.embed(np.array([0.0]), pool)


def raw(name: str, array: np.ndarray, label: str) -> RawWeight:
    def rows(begin: int, end: int) -> np.ndarray:
        part = array[begin:end]
        return widened(part) if label == "bf16" else part.astype(np.float32)

    return RawWeight(name, array.shape, label, array, lambda: rows(0, len(array)), rows)


def test_weights_of_several_formats_are_fused() -> None:
    rng = np.random.default_rng(4)
    sources = [
        raw("a", random(rng, 5, 12), "f32"),
        raw("b", halves(random(rng, 70, 12)), "bf16"),
        raw("c", random(rng, 3, 12).astype(np.float16), "f16"),
    ]
    bias = [raw("d", random(rng, 70), "f32"), raw("e", halves(random(rng, 8)), "bf16")]
    for kind in KINDS:
        weight = pack_float(NATIVE, sources, bias, kind)
        expected = np.concatenate([s.dequantize() for s in sources])
        expected = widened(halves(expected)) if kind == "bf16" else expected
        pool = NATIVE.Pool(1)
        assert weight.embed(np.arange(78), pool).tobytes() == expected.tobytes()
        joined = np.concatenate([b.dequantize() for b in bias])
        zero = np.zeros((1, 12), np.float32)
        assert weight.linear(zero, pool).tobytes() == joined.tobytes()
        size = packed_bytes(
            [s.format for s in sources], 78, 12, {"f32": "float32"}.get(kind, "bfloat16")
        )
        assert weight.bytes == size + 4 * 78
    with pytest.raises(ValueError, match="differ in their inputs"):
        pack_float(NATIVE, [sources[0], raw("f", random(rng, 5, 13), "f32")], [], "f32")


def test_unaligned_and_read_only_sources_are_packed() -> None:
    table = random(np.random.default_rng(5), 9, 11)
    data = np.frombuffer(b"x" + table.tobytes(), np.uint8)[1:].view("<f4").reshape(9, 11)
    weight = pack_float(NATIVE, [raw("w", data, "f32")], [], "f32")
    assert weight.embed(np.arange(9), NATIVE.Pool(1)).tobytes() == table.tobytes()


def test_the_format_follows_the_source_and_the_wish() -> None:
    assert packed_format(["f32"], "auto") == packed_format(["bf16", "f32"], "auto") == "f32"
    assert packed_format(["bf16", "f16"], "auto") == packed_format(["gguf:Q4_1"], "auto") == "bf16"
    assert packed_format(["gguf:Q4_1"], "float32") == "f32"
    assert packed_format(["f32"], "bfloat16") == "bf16"
    assert packed_bytes(["bf16"], 65, 33, "auto") == 128 * 34 * 2
    assert loss("bf16", "bf16") is loss("f16", "f32") is None
    assert loss("gguf:Q4_1", "bf16") == "Q4_1 weights are rounded to bfloat16"


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)
