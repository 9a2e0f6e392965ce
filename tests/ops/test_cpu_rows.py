"""Norms, activations and sums on the compiled kernels against their numpy twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops import NormSpec, Ops
from octavo.ops.native import native_available, native_reason
from octavo.ops.reference import ReferenceOps
from octavo.ops.select import select_ops
from support import native_isas

pytestmark = pytest.mark.skipif(not native_available(), reason=native_reason())

KINDS = ("silu", "gelu", "gelu_tanh", "relu")
TWIN = ReferenceOps()

widths = st.one_of(st.integers(1, 70), st.sampled_from([128, 576, 577, 1023, 3072]))
shapes = st.tuples(st.integers(0, 80), widths)


@pytest.fixture(scope="module")
def ops() -> Ops:
    return select_ops("cpu", threads=2)


def floats(seed: int, *shape: int, spread: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, shape).astype(np.float32)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa)


@settings(max_examples=150, deadline=None)
@given(
    shape=shapes,
    kind=st.sampled_from(["rms", "layer"]),
    eps=st.sampled_from([1e-6, 1e-3]),
    offset=st.sampled_from([0.0, 1.0]),
    residual=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_norms_agree_with_their_twin(
    ops: Ops,
    shape: tuple[int, int],
    kind: str,
    eps: float,
    offset: float,
    residual: bool,
    bias: bool,
    seed: int,
) -> None:
    x, weight = floats(seed, *shape), floats(seed + 1, shape[1])
    added = floats(seed + 2, *shape) if residual else None
    plus = floats(seed + 3, shape[1]) if bias else None
    spec = NormSpec(kind, eps, offset)
    normed, total = ops.norm(x, weight, spec, added, plus)
    twin, twin_total = TWIN.norm(x, weight, spec, added, plus)
    assert normed.dtype == np.float32
    assert (total == twin_total).all()
    assert (total is x) == (added is None)
    # A width of 1 takes the mean off to nothing: what is left is rounding over sqrt(eps).
    assert np.allclose(normed, twin, rtol=1e-5, atol=2e-5 if shape[1] > 1 else 1e-3)


@settings(max_examples=100, deadline=None)
@given(shape=shapes, kind=st.sampled_from(KINDS), gated=st.booleans(), seed=st.integers(0, 1000))
def test_activations_agree_with_their_twin(
    ops: Ops, shape: tuple[int, int], kind: str, gated: bool, seed: int
) -> None:
    rows, width = shape
    x = floats(seed, rows, 2 * width if gated else width, spread=8.0)
    name = f"{kind}_gated" if gated else kind
    got, twin = ops.act(x, name), TWIN.act(x, name)
    assert got.shape == twin.shape == (rows, width)
    assert np.allclose(got, twin, rtol=2e-6, atol=2e-6 * (10 if gated else 1))


@settings(max_examples=60, deadline=None)
@given(shape=shapes, factor=st.sampled_from([1.0, 0.3, -2.0]), seed=st.integers(0, 1000))
def test_sums_have_their_twins_bits(
    ops: Ops, shape: tuple[int, int], factor: float, seed: int
) -> None:
    x, y = floats(seed, *shape), floats(seed + 1, *shape)
    assert ops.add(x, y, factor).tobytes() == TWIN.add(x, y, factor).tobytes()
    assert ops.scale(x, factor).tobytes() == TWIN.scale(x, factor).tobytes()


@settings(max_examples=60, deadline=None)
@given(shape=shapes, limit=st.sampled_from([0.5, 3.0, 30.0]), seed=st.integers(0, 1000))
def test_bounds_agree_with_their_twin(
    ops: Ops, shape: tuple[int, int], limit: float, seed: int
) -> None:
    x = floats(seed, *shape, spread=10.0)
    assert (ops.bound(x, limit) == TWIN.bound(x, limit)).all()
    smooth = ops.bound(x, limit, smooth=True)
    assert np.allclose(smooth, TWIN.bound(x, limit, smooth=True), rtol=3e-6, atol=1e-6)
    special = np.broadcast_to(SPECIAL, (2, SPECIAL.size)).copy()
    for way in (False, True):
        got, twin = (o.bound(special, limit, smooth=way) for o in (ops, TWIN))
        assert np.allclose(got, twin, rtol=3e-6, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 20),
    heads=st.integers(1, 9),
    width=st.integers(2, 70),
    kind=st.sampled_from(["rms", "layer"]),
    bias=st.booleans(),
)
def test_heads_are_normed_one_by_one(
    ops: Ops, rows: int, heads: int, width: int, kind: str, bias: bool
) -> None:
    x, weight = floats(rows, rows, heads * width), floats(1, width)
    plus, spec = floats(2, width) if bias else None, NormSpec(kind, 1e-3)
    got = ops.norm(x, weight, spec, None, plus)[0]
    assert np.allclose(got, TWIN.norm(x, weight, spec, None, plus)[0], rtol=1e-5, atol=2e-5)
    alone = ops.norm(x.reshape(-1, width), weight, spec, None, plus)[0]
    assert got.tobytes() == alone.tobytes()


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, -1e30, 89.0, -89.0, 1e-40, -1e-40, 0.0, -0.0],
    np.float32,
)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_comes_out_as_in_the_twin(ops: Ops, kind: str) -> None:
    x = np.broadcast_to(SPECIAL, (3, SPECIAL.size)).copy()
    got, twin = ops.act(x, kind), TWIN.act(x, kind)
    assert (np.isnan(got) == np.isnan(twin)).all()
    assert np.allclose(got, twin, atol=1e-30, equal_nan=True)
    gated = np.concatenate([x, np.ones_like(x)], 1)
    assert (np.isnan(ops.act(gated, f"{kind}_gated")) == np.isnan(twin)).all()


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_norm_of_what_is_not_finite_is_its_twins(ops: Ops, kind: str, bad: float) -> None:
    x, weight = floats(1, 3, 37), floats(2, 37)
    x[1, 30] = bad
    spec = NormSpec(kind, 1e-5)
    for residual in (None, np.zeros_like(x)):
        got, twin = ops.norm(x, weight, spec, residual)[0], TWIN.norm(x, weight, spec, residual)[0]
        assert (np.isnan(got) == np.isnan(twin)).all()
        assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_rows_bits_depend_on_neither_its_neighbours_nor_the_threads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(2, 300)), 2 * int(rng.integers(1, 700))
    x, residual, weight = floats(seed, rows, width), floats(9, rows, width), floats(8, width)

    def results(ops: Ops, chosen: np.ndarray) -> list[np.ndarray]:
        part, added = x[chosen], residual[chosen]
        return [
            *ops.norm(part, weight, NormSpec("rms", 1e-5, 1.0), added, weight),
            ops.norm(part, weight, NormSpec("layer", 1e-5))[0],
            ops.act(part, "silu_gated"),
            ops.act(part, "gelu"),
            ops.act(part, "gelu_tanh"),
            ops.add(part, added, 0.3),
            ops.scale(part, 0.3),
            ops.bound(part, 0.8),
            ops.bound(part, 0.8, smooth=True),
            ops.norm(part, weight[: width // 2], NormSpec("rms", 1e-5))[0],
        ]

    pools = [select_ops("cpu", threads=n) for n in (1, 2, 3)]
    whole = results(pools[0], np.arange(rows))
    for ops in pools:
        order = rng.permutation(rows)
        for got, expected in zip(results(ops, order), whole, strict=True):
            assert got.tobytes() == expected[order].tobytes()
    for i in rng.integers(0, rows, 6):
        for got, expected in zip(results(pools[1], np.array([i])), whole, strict=True):
            assert got.tobytes() == expected[i].tobytes()


def test_rows_that_lie_apart_are_taken(ops: Ops) -> None:
    wide, weight = floats(3, 9, 64), floats(4, 20)
    x, y = wide[:, 7:27], wide[:, 30:50]
    assert (ops.add(x, y) == x + y).all()
    spec = NormSpec("rms", 1e-5)
    assert np.allclose(ops.norm(x, weight, spec, y)[0], TWIN.norm(x, weight, spec, y)[0], atol=1e-5)
    assert np.allclose(ops.act(x, "silu"), TWIN.act(x, "silu"), atol=1e-6)


def test_what_does_not_fit_is_told(ops: Ops) -> None:
    x, weight = floats(0, 4, 6), floats(1, 6)
    rms = NormSpec("rms", 1e-5)
    with pytest.raises(ValueError, match="weight has 5 values for rows of 6"):
        ops.norm(x, weight[:5].copy(), rms)
    with pytest.raises(ValueError, match="bias has 7 values for rows of 6"):
        ops.norm(x, weight, rms, None, floats(0, 7))
    with pytest.raises(ValueError, match="residual is 3 x 6, but x is 4 x 6"):
        ops.norm(x, weight, rms, x[:3])
    with pytest.raises(ValueError, match="unknown norm 'group'; known are rms, layer"):
        ops.norm(x, weight, NormSpec("group", 1e-5))
    with pytest.raises(ValueError, match="y is 4 x 5, but x is 4 x 6"):
        ops.add(x, x[:, :5])
    with pytest.raises(ValueError, match="unknown activation 'swish'"):
        ops.act(x, "swish")
    with pytest.raises(ValueError, match="even width, not 5"):
        ops.act(x[:, :5], "silu_gated")
    for wrong in (x.astype(np.float64), x[0], "x"):
        with pytest.raises(TypeError):
            ops.act(wrong, "silu")
        with pytest.raises(TypeError):
            ops.norm(wrong, weight, rms)
