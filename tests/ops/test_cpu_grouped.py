"""Codes in groups (GPTQ, AWQ, compressed-tensors) on the compiled backend: kept to the last bit for
every size of group and order of inputs, and multiplied row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.ops import native
from octavo.ops.cpu import CpuOps
from octavo.ops.cpu_codes import CodeWeight, pack
from octavo.ops.grouped_codes import raw_weight
from octavo.ops.packing import CODE_FORMATS, code_bytes, code_format, codes_format
from support import native_isas
from support.grouped import grouped

NATIVE: Any = native.load_native()[0]
pytestmark = pytest.mark.skipif(NATIVE is None, reason=native.native_reason() or "no kernels")

NAMES = [name for name in CODE_FORMATS if name.startswith("uint")]
GROUPS = [(64, 32, None), (256, 128, 4), (320, 96, 5), (300, 300, None), (300, 128, 6), (40, 64, 7)]
"""Inputs, inputs of a group, seed of their order: also groups that are short or longer than all."""


def everything(weight: CodeWeight) -> Any:
    return weight.embed(np.arange(weight.parts[0].outputs), NATIVE.Pool(1))


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("inputs", "group", "seed"), GROUPS)
def test_weights_are_kept_to_the_last_bit(
    name: str, inputs: int, group: int, seed: int | None
) -> None:
    raw, expected = grouped(name, 37, inputs, group, shuffled=seed)
    assert np.array_equal(raw.dequantize(), expected)
    assert raw.dequantize_rows is not None
    assert np.array_equal(raw.dequantize_rows(5, 9), expected[5:9])
    weight = pack(NATIVE, [raw])
    assert np.array_equal(everything(weight), expected)
    assert weight.nbytes <= code_bytes(name, 37, inputs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("inputs", "group", "seed"), GROUPS)
def test_products_are_of_those_weights(
    name: str, inputs: int, group: int, seed: int | None
) -> None:
    """Activations that are whole numbers up to 127 with one such in each 16 lose nothing."""
    raw, expected = grouped(name, 70, inputs, group, shuffled=seed)
    weight, pool = pack(NATIVE, [raw]), NATIVE.Pool(2)
    x = np.random.default_rng(1).integers(-127, 128, (9, inputs)).astype(np.float32)
    order = np.arange(inputs) if seed is None else raw.codes.order()  # type: ignore[union-attr]
    x[:, order[::16]] = 127
    exact = x @ expected.astype(np.float64).T
    size = np.abs(x).sum(axis=1, keepdims=True) * np.abs(expected).max() * 2
    assert (np.abs(weight.linear(x, pool) - exact) <= size * 2**-20).all()


@pytest.mark.parametrize("name", NAMES)
def test_an_order_of_inputs_changes_no_promise(name: str) -> None:
    """A row has the same bits alone and in any batch, and those of the plain order's product."""
    raw = grouped(name, 147, 768, 128, shuffled=9)[0]
    weight = pack(NATIVE, [raw])
    x = floats(131, 768) * np.random.default_rng(2).uniform(0.01, 100, (131, 1)).astype(np.float32)
    whole = weight.linear(x, NATIVE.Pool(1))
    for threads in (2, 3):
        assert np.array_equal(weight.linear(x, NATIVE.Pool(threads)), whole)
    for begin, end in ((0, 1), (1, 64), (64, 65), (65, 131)):
        assert np.array_equal(weight.linear(x[begin:end], NATIVE.Pool(2)), whole[begin:end])
    codes = raw.codes
    assert codes is not None
    order = codes.order()

    def sorted_rows(begin: int, end: int) -> tuple[Any, Any, Any]:
        values, scales, zeros = codes.rows(begin, end)
        return values[:, order], scales, zeros

    plain = replace(codes, rows=sorted_rows, order=lambda: None)
    same = pack(NATIVE, [raw_weight("w", 147, raw.format, plain)])
    assert np.array_equal(same.linear(np.ascontiguousarray(x[:, order]), NATIVE.Pool(2)), whole)


def test_parts_of_several_orders_gather_each_their_own() -> None:
    raws = [
        grouped("uint4b8/f16", n, 128, 32, shuffled=s)[0] for n, s in ((20, 1), (30, 1), (9, 2))
    ]
    raws.append(grouped("uint4b8/f16", 12, 128, 32)[0])
    x, pool = floats(5, 128), NATIVE.Pool(2)
    stacked = pack(NATIVE, raws)
    assert [part.outputs for part in stacked.parts] == [50, 9, 12]
    apart = np.concatenate([pack(NATIVE, [raw]).linear(x, pool) for raw in raws], axis=1)
    assert np.array_equal(stacked.linear(x, pool), apart)


@pytest.mark.parametrize("seed", [None, 3])
def test_rows_may_be_taken(seed: int | None) -> None:
    raw, expected = grouped("uint4/f16", 60, 96, 32, shuffled=seed)
    index = np.arange(60).reshape(4, 3, 5)[:, 1].reshape(-1)
    assert raw.take_rows is not None
    part = raw.take_rows(index)
    assert part.shape == (20, 96)
    assert np.array_equal(part.dequantize(), expected[index])
    assert np.array_equal(everything(pack(NATIVE, [part])), expected[index])
    assert part.take_rows is not None
    for rows in (np.array([7, 2]), slice(3, 9)):
        assert np.array_equal(part.take_rows(rows).dequantize(), expected[index[rows]])


def test_the_backend_takes_codes_or_their_floats() -> None:
    raw, expected = grouped("uint4/f16", 40, 64, 32, shuffled=1)
    x = floats(3, 64)
    ops = CpuOps()
    assert np.array_equal(everything(ops.pack([raw])), expected)
    assert ops.notes == []
    for dtype, tolerance in (("float32", 1e-6), ("bfloat16", 0.01)):
        other = CpuOps(dtype=dtype)
        found = other.linear(x, other.pack([raw]))
        exact = x @ expected.T
        assert np.abs(found - exact).max() <= tolerance * np.abs(exact).max()
        assert other.notes == (
            ["uint4/f16 weights are rounded to bfloat16"] if dtype == "bfloat16" else []
        )


def test_which_groups_become_codes() -> None:
    assert codes_format(4, 8, 128, 4096, True) == "codes:uint4b8/f16"
    assert codes_format(4, None, 32, 4096, False) == "codes:uint4/f32"
    assert codes_format(8, 128, 4096, 4096, True) == "codes:int8"
    assert codes_format(4, None, 40, 40, True) == "codes:uint4/f16"
    assert code_format(codes_format(4, 8, 48, 96, True)) is None
    assert code_format("codes:uint4/f16") == "uint4/f16"
    assert code_format("codes:uint4/f16", dtype="bfloat16") is None
    assert code_format("codes:Q4_0") is None and code_format("uint4/f16") is None
    assert code_format("codes:uint4/f16", quantize="int8") == "uint4/f16"


def test_an_order_that_names_not_each_input_once_is_refused() -> None:
    matrix = NATIVE.CodeMatrix("uint4/f16", 2, 32)
    for order, message in (
        (np.arange(31), "an order of 31 for 32"),
        (np.arange(32) + 1, "32 is outside"),
        (np.zeros(32, np.int64), "once"),
    ):
        with pytest.raises(ValueError, match=message):
            matrix.set_order(order)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)
