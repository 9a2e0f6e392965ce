"""The machine's ceilings: measured, for each instruction set, and plausible numbers."""

from __future__ import annotations

import math

import pytest

from octavo.bench.ceilings import KINDS, Ceilings, measure
from octavo.ops.native import build_info, load_native

native = load_native()[0]
needs_native = pytest.mark.skipif(native is None, reason="the compiled kernels are not built")
ISAS = build_info().get("isas", [])


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_ceilings_are_positive_and_finite(isa: str, threads: int) -> None:
    found = measure(threads, isa, read_bytes=8 << 20, runs=2)
    assert (found.isa, found.threads) == (isa, threads)
    assert set(found.operations_per_s) == set(found.paths) == set(KINDS)
    for rate in (found.read_bytes_per_s, *found.operations_per_s.values()):
        assert math.isfinite(rate) and rate > 1e6


@needs_native
def test_the_instruction_set_in_use_is_the_default() -> None:
    assert measure(1, read_bytes=1 << 20, runs=1).isa == build_info()["isa"]


@needs_native
def test_operations_are_counted_in_full() -> None:
    """Twice the rounds or pieces are twice the operations, of every kind and instruction set."""
    assert native is not None
    pool = native.Pool(2)
    for isa in ISAS:
        for kind in KINDS:
            one, seconds = native.dot_ceiling(kind, 3, 2, pool, isa)
            assert one > 0 and seconds > 0
            assert native.dot_ceiling(kind, 6, 2, pool, isa)[0] == 2 * one
            assert native.dot_ceiling(kind, 3, 4, pool, isa)[0] == 2 * one


@needs_native
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("float16", 1, 1), "kind is 'float16'; it must be float32, bfloat16 or int8"),
        (("int8", 0, 1), "rounds is 0"),
        (("int8", 1 << 30, 1), "rounds is 1073741824"),
        (("int8", 1, 0), "pieces is 0"),
        (("int8", 1, 1 << 40), "pieces is"),
    ],
)
def test_malformed_calls_raise(arguments: tuple[str, int, int], told: str) -> None:
    assert native is not None
    with pytest.raises(ValueError, match=told):
        native.dot_ceiling(*arguments, native.Pool(1))


@needs_native
def test_malformed_memory_and_instruction_sets_raise() -> None:
    assert native is not None
    pool = native.Pool(1)
    for size in (0, 1, 1 << 45):
        with pytest.raises(ValueError, match=f"bytes is {size}"):
            native.ReadCeiling(size, pool)
    with pytest.raises(ValueError, match="no kernels for 'sse9'"):
        native.ReadCeiling(1 << 20, pool).run(pool, "sse9")
    with pytest.raises(ValueError, match="no kernels for 'sse9'"):
        native.dot_paths("sse9")
    with pytest.raises(ValueError, match="no kernels for 'sse9'"):
        measure(1, "sse9", read_bytes=1 << 20)


def test_the_nearer_ceiling_is_the_bound() -> None:
    found = Ceilings("x", 1, 10.0, {"float32": 100.0, "int8": 400.0}, {})
    assert found.seconds(20, 100, "float32") == 2.0
    assert found.limit(20, 100, "float32") == "read"
    assert found.seconds(20, 400, "float32") == 4.0
    assert found.limit(20, 400, "float32") == "float32"
    assert found.seconds(20, 400, "int8") == 2.0
