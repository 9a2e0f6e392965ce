"""Rope: every spelling and kind, against the tables of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.model.errors import ModelError
from octavo.model.rope import parse_rope
from octavo.ops import RopeSpec
from support.golden_models import ROPE_BASE, ROPES

GOLDEN = Path(__file__).parents[1] / "golden" / "rope.npz"
HEAD_DIM = 32


def config(parameters: dict[str, Any] | None, spelling: str) -> dict[str, Any]:
    """A config.json with `parameters` (under "rope_type") in one of the spellings."""
    base: dict[str, Any] = dict(ROPE_BASE)
    if parameters is None or spelling == "null":
        return {**base, "rope_scaling": None}
    rest = {key: value for key, value in parameters.items() if key != "rope_type"}
    kind = parameters["rope_type"]
    if spelling == "rope_type":
        return {**base, "rope_scaling": {"rope_type": kind, **rest}}
    if spelling == "type":
        return {**base, "rope_scaling": {"type": kind, **rest}}
    if spelling == "both":
        return {**base, "rope_scaling": {"type": kind, "rope_type": kind, **rest}}
    theta = base.pop("rope_theta")
    return {**base, "rope_parameters": {"rope_type": kind, "rope_theta": theta, **rest}}


SPELLINGS = ("rope_type", "type", "both", "rope_parameters")


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", ROPES)
def test_b07_tables_equal_transformers_in_every_spelling(name: str, spelling: str) -> None:
    parameters, context = ROPES[name]
    spec = parse_rope(config(parameters, spelling), HEAD_DIM).build(context)
    with np.load(GOLDEN) as golden:
        positions = golden[f"{name}.positions"]
        cos, sin = golden[f"{name}.cos"], golden[f"{name}.sin"]
        frequencies = golden[f"{name}.frequencies"]
    np.testing.assert_allclose(spec.inverse_frequencies, frequencies, rtol=3e-7)
    angles = np.outer(positions, np.float32(spec.inverse_frequencies)).astype(np.float32)
    np.testing.assert_allclose(np.cos(angles) * spec.scale, cos, atol=2e-4)
    np.testing.assert_allclose(np.sin(angles) * spec.scale, sin, atol=2e-4)


def test_b07_the_tables_tell_the_kinds_apart() -> None:
    specs = {
        name: parse_rope(config(p, "type"), HEAD_DIM).build(c) for name, (p, c) in ROPES.items()
    }
    plain = specs.pop("default")
    same = [name for name, spec in specs.items() if spec == plain]
    assert same == ["dynamic_short"], "within its own length dynamic rope is plain"
    assert len(set(specs.values())) == len(specs)


def test_b07_null_and_absent_mean_plain_rope() -> None:
    absent = dict(ROPE_BASE)
    for spelled in (config(None, "null"), absent, {**absent, "rope_parameters": None}):
        rope = parse_rope(spelled, HEAD_DIM)
        assert (rope.kind, rope.theta, rope.context()) == ("default", 20000.0, 256)


def test_b07_an_integer_factor_is_a_factor() -> None:
    whole = parse_rope(config({"rope_type": "linear", "factor": 8}, "type"), HEAD_DIM)
    assert whole.build(9) == parse_rope(config(*_linear(8.0)), HEAD_DIM).build(9)


def _linear(factor: float) -> tuple[dict[str, Any], str]:
    return {"rope_type": "linear", "factor": factor}, "rope_type"


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("default", 256),
        ("linear", 8 * 256),
        ("dynamic", 3 * 256),
        ("yarn", 4 * 64),
        ("llama3", 256),
        ("longrope", 256),
    ],
)
def test_b07_derived_context(name: str, context: int) -> None:
    assert parse_rope(config(ROPES[name][0], "type"), HEAD_DIM).context() == context


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_b07_unknown_kind_is_refused_by_name(spelling: str) -> None:
    with pytest.raises(ModelError, match="'foo' is unknown") as caught:
        parse_rope(config({"rope_type": "foo", "factor": 2.0}, spelling), HEAD_DIM)
    assert caught.value.code == "bad_rope"
    assert "llama3" in str(caught.value), "it names what is supported"


REQUIRED = {
    "linear": ["factor"],
    "dynamic": ["factor"],
    "yarn": ["factor", "original_max_position_embeddings"],
    "llama3": ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
    "longrope": ["short_factor", "long_factor", "original_max_position_embeddings"],
}


@pytest.mark.parametrize(
    ("kind", "key"), [(k, key) for k, keys in REQUIRED.items() for key in keys]
)
def test_b07_an_incomplete_kind_is_refused_naming_the_key(kind: str, key: str) -> None:
    parameters = {k: v for k, v in ROPES[kind][0].items() if k != key}
    for spelling in SPELLINGS:
        with pytest.raises(ModelError, match=f"'{key}'"):
            parse_rope(config(parameters, spelling), HEAD_DIM)
        for wrong in ("4", True, -1, float("nan"), None):
            with pytest.raises(ModelError, match=f"'{key}'"):
                parse_rope(config({**parameters, key: wrong}, spelling), HEAD_DIM)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"factor": 2.0}}, "rope_type is missing"),
        ({"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2.0}}, "differ"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "each layer type"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_theta": "many"}, "rope_theta is 'many'"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
        ({"partial_rotary_factor": 0.05}, "must be even"),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            "rope_scaling has 'factor' = 2.0",
        ),
    ],
)
def test_b07_contradictions_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse_rope({**ROPE_BASE, **changes}, HEAD_DIM)


def test_b07_llama3_needs_its_factors_in_order() -> None:
    parameters = {**ROPES["llama3"][0], "high_freq_factor": 1.0}
    with pytest.raises(ModelError, match="high_freq_factor"):
        parse_rope(config(parameters, "type"), HEAD_DIM)


def test_b07_phi3_keeps_the_original_length_beside_the_parameters() -> None:
    parameters = dict(ROPES["longrope"][0])
    original = parameters.pop("original_max_position_embeddings")
    beside = {**config(parameters, "type"), "original_max_position_embeddings": original}
    inside = config(ROPES["longrope"][0], "type")
    assert parse_rope(beside, HEAD_DIM).build(256) == parse_rope(inside, HEAD_DIM).build(256)


def test_the_old_name_of_longrope_is_understood() -> None:
    parameters = {**ROPES["longrope"][0], "rope_type": "su"}
    assert parse_rope(config(parameters, "type"), HEAD_DIM).kind == "longrope"


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_kinds_that_depend_on_the_length_are_fixed_by_the_context(kind: str) -> None:
    rope = parse_rope(config(ROPES[kind][0], "type"), HEAD_DIM)
    assert rope.build(64) != rope.build(rope.context())


@pytest.mark.parametrize("kind", ["default", "linear", "yarn", "llama3"])
def test_the_other_kinds_do_not_depend_on_the_context(kind: str) -> None:
    rope = parse_rope(config(ROPES[kind][0], "type"), HEAD_DIM)
    assert rope.build(8) == rope.build(rope.context())


def test_divisors_divide_the_frequencies() -> None:
    divisors = tuple(1.0 + i for i in range(16))
    plain = parse_rope(dict(ROPE_BASE), HEAD_DIM).build(256)
    divided = parse_rope(dict(ROPE_BASE), HEAD_DIM, divisors).build(256)
    assert isinstance(divided, RopeSpec)
    np.testing.assert_allclose(
        divided.inverse_frequencies, np.divide(plain.inverse_frequencies, divisors), rtol=2e-7
    )
    with pytest.raises(ModelError, match="rope_freqs has 3 entries, not 16"):
        parse_rope(dict(ROPE_BASE), HEAD_DIM, divisors[:3])
