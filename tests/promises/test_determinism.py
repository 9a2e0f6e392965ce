"""Promise 1 on a real model, at length: run by `make determinism`, not with the other tests.

For each way that the compiled kernels keep weights and cache, 64 mixed requests come alone, in a
crowd (a pool that is too small, random budgets and numbers of threads, permuted blocks, shared
prefixes, aborts), a second time on one engine (prefix hits), and cut in the middle and resumed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.core.config import SchedulerConfig
from octavo.core.scheduler import Scheduler
from octavo.engine.clock import MonotonicClock
from octavo.engine.engine_core import EngineCore
from octavo.model.runner import load
from octavo.ops.native import native_available
from support import native_isas
from support.crowds import Start, alone, crowded, cut_and_resumed, requests, run
from support.default_model import default_model
from support.load_config import load_config
from support.permuted_blocks import PermutedBlocks

pytestmark = [
    pytest.mark.determinism,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not native_available(), reason="no compiled kernels"),
]

BLOCK, TIGHT, REQUESTS = 16, 60, 64
MODES = {
    "as it is": {},
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int8 cache": {"kv_cache_dtype": "int8"},
}


def starter(**options: str) -> Start:
    def start(blocks: int, budget: int, threads: int, seed: int | None) -> EngineCore:
        config = load_config(
            default_model(),
            max_model_len=512,
            num_blocks=blocks,
            backend="cpu",
            threads=threads,
            **options,
        )
        loaded = load(config)
        limits = SchedulerConfig(
            num_blocks=blocks, block_size=BLOCK, max_model_len=512, max_num_batched_tokens=budget
        )
        executor = loaded.executor
        permuted = executor if seed is None else PermutedBlocks(executor, blocks, seed)
        return EngineCore(
            Scheduler(limits), permuted, MonotonicClock(), vocab_size=loaded.info.vocab_size
        )

    return start


@pytest.mark.parametrize("name", MODES)
def test_whatever_happens_the_default_model_says_the_same(name: str) -> None:
    start = starter(**MODES[name])
    submissions = requests(7, BLOCK, count=REQUESTS, words=40_000, longest=120, outputs=32)
    expected = alone(start, submissions)
    for seed in range(3):
        assert crowded(start, submissions, TIGHT, seed)[0] == expected, seed
    for cut in (5, 40):
        assert cut_and_resumed(start, submissions, cut, TIGHT, 64)[0] == expected, cut
    core = start(1000, 512, 2, 1)
    for turn in range(2):  # the second time from the prefix cache
        answers: dict = {}
        for submission in submissions:
            core.add(replace(submission, request_id=f"{submission.request_id}.{turn}"))
        run(core, answers)
        assert {(key.split(".")[0], n): said for (key, n), said in answers.items()} == expected
    assert core.scheduler.counters.cached_tokens > 0


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_same_holds_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa, "-m", "determinism", "-k", "says_the_same")
