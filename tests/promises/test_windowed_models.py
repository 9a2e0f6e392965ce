"""Promise 1 for models with sliding windows (cases B01, B03, B05): the blocks that they give back
change nothing, neither alone nor in a crowd, in chunks, from the prefix cache, preempted, forked or
resumed, in models of windows alone and of windows between layers with full attention."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.blocks import GroupSpec, span_blocks
from octavo.core.config import SchedulerConfig
from octavo.core.invariants import check
from octavo.core.params import SamplingParams
from octavo.core.request import Submission
from octavo.core.scheduler import Scheduler
from octavo.core.stats import Cause
from octavo.engine.clock import MonotonicClock
from octavo.engine.engine_core import EngineCore
from octavo.model.decoder import Decoder
from octavo.model.executor import ModelExecutor
from octavo.model.kv_cache import group_windows
from octavo.ops.native import native_available
from octavo.ops.select import select_ops
from support import native_isas
from support.crowds import (
    LOOSE,
    Answers,
    Start,
    alone,
    crowded,
    cut_and_resumed,
    note,
    requests,
    run,
)
from support.permuted_blocks import PermutedBlocks
from support.tiny_models import TinyModel, tiny_random
from support.windowed_models import windowed


@dataclass(frozen=True)
class Mode:
    backend: str
    block: int
    tight: int
    """Blocks of the full group in the crowd."""
    dtype: str = "auto"
    kv_dtype: str = "float32"


MODES = {"reference": Mode("reference", 4, 26)}
if native_available():
    MODES |= {
        "cpu-float32": Mode("cpu", 16, 10, "float32"),
        "cpu-bfloat16": Mode("cpu", 16, 10, "bfloat16", "bfloat16"),
        "cpu-int8": Mode("cpu", 16, 10, "bfloat16", "int8"),
    }
WINDOWS = {
    "alternating": (1.5, 0),
    "full first": (0, 2.25),
    "windows alone": (1.5,),
    "two windows": (0.5, 0, 3),
}
"""In blocks; 0 is full attention."""


def model_of(mode: Mode, windows: str, seed: int = 3) -> TinyModel:
    sizes = [int(blocks * mode.block) for blocks in WINDOWS[windows]]
    return windowed(tiny_random("llama", seed, layers=4), sizes)


def starter(model: TinyModel, mode: Mode, give_back: bool = True, room: int = 3) -> Start:
    """Windowed groups get what `room` sequences hold, and two blocks. Without `give_back` the
    scheduler knows nothing of the windows, and keeps all blocks."""

    def start(blocks: int, budget: int, threads: int, seed: int | None) -> EngineCore:
        groups = []
        for window in group_windows(model.spec):
            few = room * span_blocks(window, mode.block) + 2
            size = min(blocks, few) if give_back and blocks != LOOSE else blocks
            groups.append(GroupSpec(size, mode.block, window if give_back else 0))
        pools = [group.num_blocks for group in groups]
        one = mode.backend == "reference"
        ops = select_ops(mode.backend, row_at_a_time=one, dtype=mode.dtype, threads=threads)
        executor = ModelExecutor(
            Decoder(model.spec, model.source(), ops),
            ops,
            num_blocks=blocks,
            pools=pools,
            block_size=mode.block,
            kv_dtype=mode.kv_dtype,
        )
        config = SchedulerConfig(
            num_blocks=blocks,
            block_size=mode.block,
            max_model_len=600,
            max_num_batched_tokens=budget,
            groups=tuple(groups),
        )
        permuted = executor if seed is None else PermutedBlocks(executor, pools, seed)
        return EngineCore(
            Scheduler(config), permuted, MonotonicClock(), vocab_size=model.spec.vocab
        )

    return start


def said(core: EngineCore, *submissions: Submission) -> Answers:
    answers: Answers = {}
    for submission in submissions:
        core.add(submission)
    run(core, answers)
    return answers


def greedy(name: str, prompt: list[int], outputs: int, **options: object) -> Submission:
    params = SamplingParams(
        temperature=0.0, max_tokens=outputs, logprobs=1, ignore_eos=True, **options
    )  # type: ignore[arg-type]
    return Submission(name, prompt, params, 1)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", MODES)
def test_b05_what_is_given_back_was_not_seen(name: str, windows: str) -> None:
    """Around the window's borders and far beyond: as if every block had been kept."""
    mode = MODES[name]
    model = model_of(mode, windows)
    widest = max(group_windows(model.spec))
    for length in (1, widest - 1, widest, widest + 1, 3 * widest):
        asked = greedy("r", [5 + i % 200 for i in range(length)], 20)
        kept = said(starter(model, mode, give_back=False)(LOOSE, 256, 1, None), asked)
        for budget in (256, 7):
            assert said(starter(model, mode)(LOOSE, budget, 1, 1), asked) == kept, length
    unseen = starter(tiny_random("llama", 3, layers=4), mode)(LOOSE, 256, 1, None)
    assert said(unseen, asked) != kept, "the window makes no difference"


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", MODES)
def test_b01_b03_a_crowd_changes_nothing(name: str, windows: str) -> None:
    mode = MODES[name]
    start = starter(model_of(mode, windows), mode, room=6)
    preemptions = cached = copies = 0
    for seed in range(3):
        submissions = requests(seed, mode.block)
        expected = alone(start, submissions)
        found, core = crowded(start, submissions, mode.tight, seed)
        assert found == expected, seed
        for pool in core.scheduler.books.tables.pools:
            assert pool.held == 0
        preemptions += core.scheduler.counters.preemptions
        cached += core.scheduler.counters.cached_tokens
        copies += core.scheduler.counters.copies
    assert cached > 0 and copies > 0, "nothing was disturbed"
    # What outgrows its window is counted at its full span, so that windows alone never run short.
    assert preemptions > 0 or windows in ("windows alone", "two windows")


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", MODES)
def test_b03_preempted_at_any_moment(name: str, windows: str) -> None:
    mode = MODES[name]
    start = starter(model_of(mode, windows), mode, room=6)
    submissions = requests(9, mode.block, count=6)
    found: Answers = {}
    core = start(3 * mode.tight, 2 * mode.block, 2, 4)
    for submission in submissions:
        core.add(submission)
    books, step = core.scheduler.books, 0
    while core.has_work:
        note(found, core.step())
        step += 1
        if books.running and step % 3 == 0:
            books.preempt(books.running[step % len(books.running)], Cause.BLOCKS)
        check(core.scheduler)
    assert found == alone(start, submissions)
    assert core.scheduler.counters.preemptions >= 5


@settings(max_examples=8, deadline=None)
@given(
    name=st.sampled_from(list(MODES)),
    windows=st.sampled_from(list(WINDOWS)),
    seed=st.integers(0, 2**31),
    cut=st.integers(1, 30),
)
def test_any_crowd_and_any_cut_change_nothing(name: str, windows: str, seed: int, cut: int) -> None:
    mode = MODES[name]
    start = starter(model_of(mode, windows, seed % 1000), mode)
    submissions = requests(seed, mode.block)
    expected = alone(start, submissions)
    assert crowded(start, submissions, mode.tight, seed)[0] == expected
    budget = 4 * mode.block
    assert cut_and_resumed(start, submissions, cut, mode.tight, budget)[0] == expected


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", MODES)
def test_b01_a_hit_beyond_what_the_window_still_holds(name: str, windows: str) -> None:
    """A long conversation goes on: of its windows' blocks only the last are left in the cache."""
    mode = MODES[name]
    start = starter(model_of(mode, windows), mode)
    length = 12 * mode.block
    prompt = [4 + (7 * i) % 240 for i in range(length)]
    asked = [
        greedy("whole", prompt, 9),
        greedy("again", prompt, 9),
        greedy("longer", [*prompt, 9, 8, 7], 9),
        greedy("earlier", [*prompt[: length // 2], 3, 4], 9),
        greedy("forked", [*prompt, 6], 9, n=3),
    ]
    expected = alone(start, asked)
    core = start(20 * mode.block, 32, 2, 5)
    found: Answers = {}
    for submission in asked:
        found |= said(core, submission)
    assert found == expected
    pools = core.scheduler.books.tables.pools
    evicted = any(pool.evictions for pool in pools if pool.spec.window)
    assert evicted, "the windows' pools hold everything"
    assert core.scheduler.counters.cached_tokens >= 2 * length - 1, "no hits"


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", MODES)
def test_the_blocks_of_a_long_answer_stay_bounded(name: str, windows: str) -> None:
    mode = MODES[name]
    model = model_of(mode, windows)
    core = starter(model, mode)(60, 64, 1, None)
    length = min(10 * max(group_windows(model.spec)), 500)
    core.add(greedy("long", [5, 6, 7], length))
    most: dict[str, int] = {}
    while core.has_work:
        core.step()
        for group, held in core.scheduler.stats().group_held.items():
            most[group] = max(most.get(group, 0), held)
    for window in group_windows(model.spec):
        if window:
            assert most[f"window {window}"] <= span_blocks(window, mode.block) + 1
        else:
            assert most["full"] == -(-(length + 2) // mode.block)


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_kernels_keep_it_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa, "-k", "cpu")
