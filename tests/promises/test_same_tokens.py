"""Promise 1: the same request gives the same tokens, whatever happens around it.

Requests run alone on a fresh engine, and then together in a pool that is too small, in chunks, with
shared prefixes, forks, penalties, aborts, and cut in the middle and resumed, on other numbers of
threads and other block ids. On the compiled kernels and in the reference's row-at-a-time mode
tokens and logprobs are equal to the bit; in its batched mode, where the order of sums may change
with the batch, peaked models give the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.config import SchedulerConfig
from octavo.core.scheduler import Scheduler
from octavo.engine.clock import MonotonicClock
from octavo.engine.engine_core import EngineCore
from octavo.model.decoder import Decoder
from octavo.model.executor import ModelExecutor
from octavo.ops.native import native_available
from octavo.ops.select import select_ops
from support import native_isas
from support.crowds import Start, alone, crowded, cut_and_resumed, requests
from support.permuted_blocks import PermutedBlocks
from support.tiny_models import TinyModel, tiny_random


@dataclass(frozen=True)
class Mode:
    """How it is computed, and whether equal to the bit. The kernels' blocks are multiples of 16."""

    backend: str
    dtype: str = "auto"
    kv_dtype: str = "float32"
    block: int = 16
    tight: int = 10
    exact: bool = True


EXACT = Mode("reference", block=4, tight=26)
BATCHED = Mode("reference", block=4, tight=26, exact=False)
KERNELS = {
    "cpu-float32": Mode("cpu", "float32"),
    "cpu-bfloat16": Mode("cpu", "bfloat16", "bfloat16"),
    "cpu-int8": Mode("cpu", "bfloat16", "int8"),
}
MODES = {"exact": EXACT, "batched": BATCHED, **(KERNELS if native_available() else {})}


def starter(model: TinyModel, mode: Mode) -> Start:
    def start(blocks: int, budget: int, threads: int, seed: int | None) -> EngineCore:
        alone = mode.backend == "reference" and mode.exact
        ops = select_ops(mode.backend, row_at_a_time=alone, dtype=mode.dtype, threads=threads)
        executor = ModelExecutor(
            Decoder(model.spec, model.source(), ops),
            ops,
            num_blocks=blocks,
            block_size=mode.block,
            kv_dtype=mode.kv_dtype,
        )
        config = SchedulerConfig(
            num_blocks=blocks,
            block_size=mode.block,
            max_model_len=256,
            max_num_batched_tokens=budget,
        )
        permuted = executor if seed is None else PermutedBlocks(executor, blocks, seed)
        return EngineCore(
            Scheduler(config), permuted, MonotonicClock(), vocab_size=model.spec.vocab
        )

    return start


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("name", MODES)
def test_b01_b03_b11_a_crowd_changes_nothing(family: str, name: str) -> None:
    mode = MODES[name]
    model = tiny_random(family, 3, peaked=not mode.exact, tied=family == "qwen2")
    start = starter(model, mode)
    preemptions = cached = 0
    for seed in range(6):
        submissions = requests(seed, mode.block)
        expected = alone(start, submissions)
        found, core = crowded(start, submissions, mode.tight, seed)
        assert found.keys() == expected.keys()
        for key, said in expected.items():
            if mode.exact:
                assert found[key] == said, (seed, key)
            else:
                assert (found[key].tokens, found[key].reason) == (said.tokens, said.reason)
        stats = core.scheduler.stats()
        assert stats.blocks_held == stats.running == stats.waiting == 0
        preemptions += core.scheduler.counters.preemptions
        cached += core.scheduler.counters.cached_tokens
    assert preemptions > 0 and cached > 0, "nothing was disturbed"


@settings(max_examples=8, deadline=None)
@given(
    name=st.sampled_from([name for name, mode in MODES.items() if mode.exact]),
    family=st.sampled_from(["llama", "qwen2"]),
    seed=st.integers(0, 2**31),
    cut=st.integers(1, 30),
)
def test_any_crowd_and_any_cut_change_nothing(name: str, family: str, seed: int, cut: int) -> None:
    mode = MODES[name]
    start = starter(tiny_random(family, seed % 1000), mode)
    submissions = requests(seed, mode.block)
    expected = alone(start, submissions)
    assert crowded(start, submissions, mode.tight, seed)[0] == expected
    budget = 4 * mode.block
    assert cut_and_resumed(start, submissions, cut, mode.tight, budget)[0] == expected


@pytest.mark.parametrize("cut", [1, 3, 8])
@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if mode.exact])
def test_resumed_after_a_cut_goes_on_with_the_same_tokens(name: str, cut: int) -> None:
    mode = MODES[name]
    start, submissions = starter(tiny_random("llama", 5), mode), requests(11, mode.block)
    expected = alone(start, submissions)
    found, resumed = cut_and_resumed(start, submissions, cut, mode.tight, 4 * mode.block)
    assert found == expected
    assert resumed or cut == 1


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_kernels_keep_it_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa, "-k", "cpu")
