"""The memory plan and its inverse (C11, H02)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.core.blocks import GroupSpec, span_blocks
from octavo.core.kv_pools import KvGroup, KvPools
from octavo.core.memory import (
    BLOCK_OVERHEAD,
    RESERVE,
    DoesNotFit,
    MemoryLimits,
    ModelFacts,
    PlanError,
    footprint,
    plan_memory,
    show_bytes,
    show_ledger,
)

GIB = 1024**3
SMALL = ModelFacts(
    weight_bytes=540_000_000,
    kv_bytes_per_token=46_080,
    workspace_bytes_per_token=250_000,
    workspace_bytes=100_000,
    max_position=8192,
)

plain_models = st.builds(
    ModelFacts,
    weight_bytes=st.integers(0, 20 * GIB),
    kv_bytes_per_token=st.integers(1, 2_000_000),
    workspace_bytes_per_token=st.integers(0, 4_000_000),
    workspace_bytes=st.integers(0, 100_000_000),
    max_position=st.integers(1, 131_072),
)
groups = st.builds(
    KvGroup, window=st.just(0) | st.integers(1, 8192), bytes_per_token=st.integers(1, 2_000_000)
)
models = plain_models | st.builds(
    lambda model, kv: replace(
        model, kv_groups=tuple(kv), kv_bytes_per_token=sum(g.bytes_per_token for g in kv)
    ),
    plain_models,
    st.lists(groups, min_size=1, max_size=3),
)
all_limits = st.builds(
    MemoryLimits,
    memory=st.integers(0, 64 * GIB),
    utilization=st.floats(0.01, 1.0),
    kv_bytes=st.none() | st.integers(1, 32 * GIB),
    kv_tokens=st.none() | st.integers(1, 1_000_000),
    max_model_len=st.none() | st.integers(1, 131_072),
    block_size=st.sampled_from([1, 8, 16, 32, 100]),
    max_num_seqs=st.integers(1, 512),
    max_num_batched_tokens=st.integers(1, 8192),
    typical_len=st.none() | st.integers(1, 8192),
)


@given(models, all_limits)
def test_a_plan_fits_its_budget_and_one_sequence_fits_the_plan(
    model: ModelFacts, limits: MemoryLimits
) -> None:
    try:
        plan = plan_memory(model, limits)
    except PlanError:
        return
    assert footprint(model, limits, plan.num_blocks) <= limits.budget
    assert sum(line.bytes for line in plan.ledger()) <= limits.budget
    assert 1 <= plan.max_model_len <= model.max_position
    for blocks, group in zip(plan.pools, model.groups, strict=True):
        assert GroupSpec(blocks, limits.block_size, group.window).longest >= plan.max_model_len
    if limits.max_model_len is not None:
        assert plan.max_model_len == limits.max_model_len and not plan.shortened


@given(models, all_limits)
def test_one_more_block_would_exceed_the_budget_or_is_not_wanted(
    model: ModelFacts, limits: MemoryLimits
) -> None:
    limits = replace(limits, kv_bytes=None, kv_tokens=None, typical_len=None)
    try:
        plan = plan_memory(model, limits)
    except PlanError:
        return
    wanted = limits.max_num_seqs * -(-plan.max_model_len // limits.block_size)
    if all(group.window for group in model.groups):
        span = max(span_blocks(group.window, limits.block_size) for group in model.groups)
        if -(-plan.max_model_len // limits.block_size) > span:
            step = -(-limits.max_num_batched_tokens // limits.block_size)
            wanted = limits.max_num_seqs * span + step
    if plan.num_blocks < wanted:
        assert footprint(model, limits, plan.num_blocks + 1) > limits.budget
    else:
        assert plan.num_blocks == wanted


@given(models, all_limits)
def test_what_does_not_fit_says_what_would(model: ModelFacts, limits: MemoryLimits) -> None:
    """Each change, alone, leads to a plan, and a smaller one of its kind does not."""
    try:
        plan_memory(model, limits)
    except DoesNotFit as error:
        names = {"kv_memory": "kv_bytes", "memory_utilization": "utilization"}
        for change in error.changes:
            name = names.get(change.field, change.field)
            plan_memory(model, replace(limits, **{name: change.value}))
            if name == "max_model_len":
                with pytest.raises(PlanError):
                    plan_memory(model, replace(limits, max_model_len=int(change.value) + 1))
            if name == "memory":
                with pytest.raises(PlanError):
                    plan_memory(model, replace(limits, memory=int(change.value) - 1))
    except PlanError:
        assert limits.max_model_len is not None
        assert limits.max_model_len > model.max_position


@given(models, all_limits, st.integers(1, 4096))
def test_c11_feasibility_is_monotone(model: ModelFacts, limits: MemoryLimits, less: int) -> None:
    """What fits at some length fits at any shorter one, and with more memory."""
    assume(limits.max_model_len is not None and limits.max_model_len > less)
    assert limits.max_model_len is not None
    try:
        plan = plan_memory(model, limits)
    except PlanError:
        return
    plan_memory(model, replace(limits, max_model_len=limits.max_model_len - less))
    more = plan_memory(model, replace(limits, memory=limits.memory + 10**9))
    assert more.num_blocks >= plan.num_blocks


@given(models, all_limits, st.integers(0, 10_000), st.integers(1, 1000))
def test_the_footprint_grows_with_everything(
    model: ModelFacts, limits: MemoryLimits, blocks: int, more: int
) -> None:
    base = footprint(model, limits, blocks)
    assert footprint(model, limits, blocks + more) > base
    assert footprint(replace(model, weight_bytes=model.weight_bytes + more), limits, blocks) > base
    wider = replace(limits, max_num_batched_tokens=limits.max_num_batched_tokens + more)
    assert footprint(model, wider, blocks) >= base


def limits_for_tokens(model: ModelFacts, tokens: int) -> MemoryLimits:
    """Memory for exactly `tokens` tokens of cache."""
    limits = MemoryLimits(memory=0, utilization=1.0)
    return replace(limits, memory=footprint(model, limits, tokens // limits.block_size))


def test_c11_unset_length_is_the_largest_that_fits() -> None:
    model = replace(SMALL, max_position=32_768)
    plan = plan_memory(model, limits_for_tokens(model, 1008))
    assert (plan.max_model_len, plan.shortened) == (1008, True)
    assert plan.max_model_len % 16 == 0


def test_c11_explicit_length_that_is_too_large_is_an_error_with_numbers() -> None:
    model = replace(SMALL, max_position=32_768)
    limits = replace(limits_for_tokens(model, 1008), max_model_len=32_768)
    with pytest.raises(DoesNotFit) as caught:
        plan_memory(model, limits)
    error = caught.value
    assert error.field == "max_model_len"
    changes = {change.field: change.value for change in error.changes}
    assert changes["max_model_len"] == 1008
    assert changes["memory"] == footprint(model, limits, 2048)
    assert "memory_utilization" not in changes
    assert plan_memory(model, replace(limits, max_model_len=900)).max_model_len == 900


def test_c11_no_budget_at_all_is_an_error() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_memory(SMALL, MemoryLimits(memory=0))
    assert [change.field for change in caught.value.changes] == ["memory"]


def test_a_length_beyond_the_model_is_an_error() -> None:
    with pytest.raises(PlanError, match=r"9000.*8192 positions") as caught:
        plan_memory(SMALL, MemoryLimits(memory=64 * GIB, max_model_len=9000))
    assert caught.value.field == "max_model_len"


@pytest.mark.parametrize("memory", [GIB, 2 * GIB, 8 * GIB])
def test_h02_the_default_cache_comes_from_the_memory_there_is(memory: int) -> None:
    plan = plan_memory(SMALL, MemoryLimits(memory=memory, utilization=0.95))
    assert footprint(SMALL, plan.limits, plan.num_blocks) <= memory * 0.95
    assert footprint(SMALL, plan.limits, plan.num_blocks + 1) > memory * 0.95


def test_h02_a_cache_larger_than_the_limit_is_refused_with_numbers() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_memory(SMALL, MemoryLimits(memory=2 * GIB, kv_bytes=4 * GIB))
    assert caught.value.field == "kv_memory"
    assert "1.80 GiB may be used" in str(caught.value)
    assert "kv_memory" in {change.field for change in caught.value.changes}


def test_a_fixed_cache_too_small_for_the_length() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_memory(SMALL, MemoryLimits(memory=8 * GIB, kv_tokens=512, max_model_len=900))
    assert str(caught.value) == (
        "one sequence needs 912 tokens of KV cache, and kv_tokens gives 512"
    )
    changes = {change.field: change.value for change in caught.value.changes}
    assert changes == {"max_model_len": 512, "kv_tokens": 912}


def test_plenty_of_memory_is_not_taken_without_need() -> None:
    plan = plan_memory(SMALL, MemoryLimits(memory=512 * GIB, max_num_seqs=4))
    assert plan.kv_tokens == max(4 * 2048, 8192)
    assert plan.chats() == (4, 2048)
    roomy = plan_memory(SMALL, MemoryLimits(memory=512 * GIB, max_num_seqs=4, typical_len=None))
    assert roomy.kv_tokens == 4 * 8192


def test_the_ledger_adds_up() -> None:
    plan = plan_memory(SMALL, MemoryLimits(memory=64 * GIB, kv_tokens=2048))
    lines = {line.name: line for line in plan.ledger()}
    assert lines["KV cache"].bytes == 2048 * 46_080 and lines["KV cache"].tokens == 2048
    assert lines["reserve"].bytes == RESERVE + 128 * BLOCK_OVERHEAD
    text = show_ledger(plan.ledger(), plan.budget)
    assert text[2] == "KV cache       90.00 MiB  2,048 tokens"
    assert text[-1].startswith("may be used") and text[-2].startswith("total")


def test_bytes_are_shown_in_the_unit_that_fits() -> None:
    shown = [show_bytes(value) for value in (1, 1536, 5 * GIB, 3 * 1024**5)]
    assert shown == ["1 bytes", "1.50 KiB", "5.00 GiB", "3072.00 TiB"]


# ---- sliding windows ----------------------------------------------------------------------------

GEMMA = replace(SMALL, kv_groups=(KvGroup(512, 38_400), KvGroup(0, 7_680)), max_position=32_768)
"""Five layers in six see 512 tokens."""


def test_windows_take_what_the_sequences_hold_of_them() -> None:
    limits = MemoryLimits(memory=64 * GIB, kv_tokens=32_768, max_model_len=32_768)
    plan = plan_memory(GEMMA, limits)
    # 16 chats of 2,048 tokens hold 33 blocks of their windows each; and a step's 32 blocks.
    assert plan.pools == (16 * 33 + 32, 2048)
    lines = {line.name: line for line in plan.ledger()}
    assert (lines["KV cache"].tokens, lines["KV cache"].bytes) == (32_768, 32_768 * 7_680)
    assert (lines["window 512"].tokens, lines["window 512"].bytes) == (8_960, 8_960 * 38_400)
    assert plan.chats() == (16, 2048)
    plain = plan_memory(replace(GEMMA, kv_groups=()), limits)
    saved = (2048 - 560) * 16 * 38_400 - 560 * BLOCK_OVERHEAD
    assert footprint(plain.model, limits, 2048) - footprint(GEMMA, limits, 2048) == saved


def test_sequences_within_the_window_need_equal_pools() -> None:
    plan = plan_memory(GEMMA, MemoryLimits(memory=64 * GIB, max_model_len=400, max_num_seqs=4))
    assert plan.pools == (100, 100)


def test_a_model_of_windows_alone_serves_more_than_its_pool() -> None:
    model = replace(SMALL, kv_groups=(KvGroup(512, 46_080),), max_position=131_072)
    plan = plan_memory(model, MemoryLimits(memory=64 * GIB, max_num_seqs=4, typical_len=None))
    assert plan.max_model_len == 131_072
    assert plan.pools == (4 * 33 + 32,)
    small = plan_memory(model, MemoryLimits(memory=64 * GIB, kv_tokens=400))
    assert (small.max_model_len, small.shortened) == (400, True)


@given(st.lists(groups, min_size=1, max_size=4), st.integers(1, 64), st.integers(1, 5000),
       st.integers(1, 5000), st.integers(0, 10_000), st.integers(0, 500))  # fmt: skip
def test_largest_is_the_inverse_of_the_pools(
    kv: list[KvGroup], size: int, typical: int, step: int, blocks: int, overhead: int
) -> None:
    pools = KvPools(kv, size, typical, step)
    cost = pools.bytes(blocks) + overhead * sum(pools.sizes(blocks))
    assert pools.largest(cost, overhead) >= blocks
    more = pools.bytes(blocks + 1) + overhead * sum(pools.sizes(blocks + 1))
    assert more > cost and pools.largest(more - 1, overhead) == blocks
    assert max(pools.sizes(blocks)) == blocks


@given(st.lists(groups, min_size=1, max_size=3), st.integers(1, 4096), st.integers(1, 40))
def test_enough_is_enough_for_typical_sequences_together(
    kv: list[KvGroup], typical: int, sequences: int
) -> None:
    pools = KvPools(kv, 16, typical, 512)
    assert pools.together(pools.enough(sequences, typical), typical) >= sequences


def test_buffers_of_a_disk_tier_are_in_the_ledger() -> None:
    limits = MemoryLimits(memory=8 * GIB)
    plan, tiered = (plan_memory(SMALL, replace(limits, tier_bytes=size)) for size in (0, 2**26))
    assert "disk buffers" not in {line.name for line in plan.ledger()}
    assert {line.name: line.bytes for line in tiered.ledger()}["disk buffers"] == 2**26
    assert sum(line.bytes for line in tiered.ledger()) <= limits.budget
