"""KV groups of a decoder: which layers form one, what they take, and an engine that runs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo.core.params import SamplingParams
from octavo.core.plan import Admitted, Row, StepPlan, Want
from octavo.core.request import Submission
from octavo.engine.build import build_engine_core
from octavo.engine.errors import EngineFatal
from octavo.engine.messages import EngineConfig
from octavo.model.info import KvGroup
from octavo.model.kv_cache import group_windows, kv_groups
from octavo.model.sizes import sized
from octavo.model.spec import DecoderSpec
from octavo.ops.native import native_available
from support.tiny_models import tiny_random
from support.windowed_models import load, windowed


def spec_of(*windows: int, layers: int = 4) -> DecoderSpec:
    return windowed(tiny_random(layers=layers), windows).spec


def test_layers_with_equal_windows_are_one_group() -> None:
    assert group_windows(spec_of(0)) == (0,)
    assert group_windows(spec_of(8, 0)) == (8, 0)
    assert kv_groups(spec_of(8, 8, 0, layers=6)) == (KvGroup(8, 4, 1024), KvGroup(0, 2, 512))


def with_attention(spec: DecoderSpec, index: int, **changes: Any) -> DecoderSpec:
    layers = list(spec.layers)
    layers[index] = replace(layers[index], attention=replace(layers[index].attention, **changes))
    return replace(spec, layers=tuple(layers))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window": 9}, "layer 2 has a window of 9; the others of KV group 0 have 8"),
        ({"group": 3}, r"numbered from 0 on, not \[0, 1, 3\]"),
        ({"layer": 5}, r"KV group 0 has layers in the places \[0, 5\]"),
        ({"layer": 0}, r"KV group 0 has layers in the places \[0, 0\]"),
    ],
)
def test_groups_that_do_not_hold_together_are_refused(changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        group_windows(with_attention(spec_of(8, 0), 2, **changes))


@pytest.mark.skipif(not native_available(), reason="no compiled kernels")
def test_bytes_are_counted_by_group_as_the_backend_holds_them() -> None:
    model = tiny_random(layers=6)
    info = replace(model.info(), kv_groups=kv_groups(spec_of(8, 8, 0, layers=6)))
    found = sized(info, backend="cpu", kv_cache_dtype="bfloat16")
    plain = sized(model.info(), backend="cpu", kv_cache_dtype="bfloat16")
    assert [(g.window, g.layers) for g in found.kv_groups] == [(8, 4), (0, 2)]
    assert [g.bytes_per_token for g in found.kv_groups] == [512, 256]
    assert found.kv_bytes_per_token == plain.kv_bytes_per_token == 768
    assert plain.kv_groups == (KvGroup(0, 6, 768),)


def config(windows: list[int], own_pools: bool = False, **fields: Any) -> EngineConfig:
    return EngineConfig(
        model="",
        served_name="m",
        max_model_len=400,
        num_blocks=40,
        block_size=4,
        executor="support.windowed_models:load",
        extra={"windows": windows, "own_pools": own_pools},
        paranoid=True,
        **fields,
    )


def test_an_engine_of_windows_alone_goes_far_beyond_its_pool() -> None:
    core, _ = build_engine_core(config([8], pools=(8,), max_num_batched_tokens=16))
    params = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
    core.add(Submission("a", [5] * 100, params, 1))
    outputs = most = 0
    while core.has_work:
        outputs += sum(len(output.tokens) for output in core.step())
        stats = core.scheduler.stats()
        assert stats.group_blocks == {"window 8": 8}
        most = max(most, stats.group_held["window 8"])
    assert outputs == 150
    assert most <= 7, "two for the window, one more at its border, four for a chunk"


def test_pools_are_as_many_as_groups_or_all_alike() -> None:
    core, _ = build_engine_core(config([8, 0], pools=(8, 40)))
    assert core.scheduler.stats().group_blocks == {"window 8": 8, "full": 40}
    core, _ = build_engine_core(config([8, 0]))
    assert core.scheduler.stats().group_blocks == {"window 8": 40, "full": 40}
    with pytest.raises(ValueError, match="3 pools for 2 KV groups"):
        build_engine_core(config([8, 0], pools=(8, 40, 40)))
    with pytest.raises(EngineFatal, match="3 pools are planned for the 2 KV groups"):
        build_engine_core(config([8, 0], pools=(8, 40, 40), own_pools=True))


def test_a_block_beyond_its_own_groups_pool_is_refused() -> None:
    executor = load(config([8, 0], pools=(11, 40))).executor
    plan = StepPlan(0, admitted=[Admitted(1, SamplingParams(), 1, 0, 1, [5])])
    for tables, refused in ((([10], [39]), False), (([11], [39]), True), (([10], [40]), True)):
        plan.rows = [Row(1, 0, [5], tables, 0, 1, Want.NONE)]
        errors = executor.submit(plan).errors
        assert bool(errors) == refused
        assert all("outside the pool" in error for error in errors.values())
        plan.admitted = []
