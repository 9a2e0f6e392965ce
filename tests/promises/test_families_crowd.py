"""Promise 1 for what families add to LLaMA: ALiBi, learned positions, parallel layers, windows,
routed experts.

Requests run alone, then together in a pool that is too small, in chunks, with shared prefixes and
forks, on other numbers of threads: equal to the bit, on the compiled kernels.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.core.blocks import GroupSpec
from octavo.core.config import SchedulerConfig
from octavo.core.scheduler import Scheduler
from octavo.engine.clock import MonotonicClock
from octavo.engine.engine_core import EngineCore
from octavo.model.decoder import Decoder
from octavo.model.executor import ModelExecutor
from octavo.model.kv_cache import group_windows
from octavo.model.registry import open_model
from octavo.ops.native import native_available, native_reason
from octavo.ops.select import select_ops
from support import golden_families
from support.crowds import Start, alone, crowded, requests
from support.permuted_blocks import PermutedBlocks

BLOCK, TIGHT, LONGEST = 16, 8, 128

FAMILIES = [
    "mpt",
    "gpt2",
    "opt",
    "falcon_40b",
    "falcon_rw",
    "phi3",
    "gptj",
    "gpt_neox_sequential",
    "gemma2",
    "gemma3",
    "qwen2_window",
    "qwen3",
    "smollm3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
]


def write(path: Path, name: str) -> Path:
    """The golden checkpoint, with a table of positions that is long enough."""
    config = dict(golden_families.CONFIGS[name])
    if name == "mixtral":  # it would leave too much room
        del config["sliding_window"]
    with np.load(golden_families.GOLDEN / f"{name}.npz") as kept:
        shapes = json.loads(str(kept["shapes"]))
    for key in ("n_positions", "max_position_embeddings"):
        if key in config:
            config[key] = LONGEST
    for table, extra in (("transformer.wpe", 0), ("model.decoder.embed_positions", 2)):
        if f"{table}.weight" in shapes:
            shapes[f"{table}.weight"][0] = LONGEST + extra
    return golden_families.write_checkpoint(path, config, shapes)


def starter(path: Path) -> Start:
    def start(blocks: int, budget: int, threads: int, seed: int | None) -> EngineCore:
        ops = select_ops("cpu", dtype="bfloat16", threads=threads)
        opened = open_model(path)
        windows = group_windows(opened.spec)
        groups = tuple(GroupSpec(blocks, BLOCK, window) for window in windows)
        pools = [blocks] * len(groups)
        executor = ModelExecutor(
            Decoder(opened.spec, opened.source, ops),
            ops,
            num_blocks=blocks,
            pools=pools,
            block_size=BLOCK,
            kv_dtype="bfloat16",
        )
        config = SchedulerConfig(
            num_blocks=blocks,
            block_size=BLOCK,
            max_model_len=LONGEST,
            max_num_batched_tokens=budget,
            groups=groups,
        )
        permuted = executor if seed is None else PermutedBlocks(executor, pools, seed)
        vocab = opened.spec.vocab
        return EngineCore(Scheduler(config), permuted, MonotonicClock(), vocab_size=vocab)

    return start


@pytest.mark.skipif(not native_available(), reason=native_reason())
@pytest.mark.parametrize("name", FAMILIES)
def test_b01_b03_b14_a_crowd_changes_nothing(name: str, tmp_path: Path) -> None:
    start = starter(write(tmp_path, name))
    preemptions = cached = 0
    for seed in range(12):
        submissions = requests(seed, BLOCK, words=golden_families.VOCAB)
        expected = alone(start, submissions)
        found, core = crowded(start, submissions, TIGHT, seed)
        assert found == expected
        preemptions += core.scheduler.counters.preemptions
        cached += core.scheduler.counters.cached_tokens
        if seed > 1 and preemptions and cached:
            break
    assert preemptions > 0 and cached > 0, "nothing was disturbed"
