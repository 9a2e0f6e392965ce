"""Promise 1 with tiers: blocks that went to memory or disk and back change no bit.

Every request runs alone without a tier, and then in a crowd in a pool that is too small, twice over
one tier: the second engine is a restart, or another pool, and finds what the first one stored. So
too with damaged files, and when the disk is full in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from octavo.core.blocks import GroupSpec
from octavo.core.config import SchedulerConfig
from octavo.core.scheduler import Scheduler
from octavo.engine.clock import MonotonicClock
from octavo.engine.engine_core import EngineCore
from octavo.model.decoder import Decoder
from octavo.model.executor import ModelExecutor
from octavo.model.kv_cache import group_windows
from octavo.ops.native import native_available
from octavo.ops.select import select_ops
from octavo.tiers import BlockTier
from octavo.tiers.disk import DiskTier
from octavo.tiers.executor import TieredExecutor
from octavo.tiers.host import HostTier
from support.crowds import Start, alone, crowded, requests
from support.permuted_blocks import PermutedBlocks
from support.tiny_models import TinyModel, tiny_random
from support.windowed_models import windowed


@dataclass(frozen=True)
class Mode:
    backend: str
    dtype: str = "auto"
    kv_dtype: str = "float32"
    block: int = 16
    tight: int = 10


MODES = {"reference": Mode("reference", block=4, tight=26)}
if native_available():
    MODES |= {
        "cpu-float32": Mode("cpu", "float32"),
        "cpu-bfloat16": Mode("cpu", "bfloat16", "bfloat16"),
        "cpu-int8": Mode("cpu", "bfloat16", "int8"),
    }


def starter(model: TinyModel, mode: Mode, tier: BlockTier | None = None) -> Start:
    def start(blocks: int, budget: int, threads: int, seed: int | None) -> EngineCore:
        ops = select_ops(
            mode.backend,
            row_at_a_time=mode.backend == "reference",
            dtype=mode.dtype,
            threads=threads,
        )
        windows = group_windows(model.spec)
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
            groups=tuple(GroupSpec(blocks, mode.block, window) for window in windows),
        )
        inner = executor if tier is None else TieredExecutor(executor, tier)
        permuted = PermutedBlocks(inner, [blocks] * len(windows), seed or 0)
        return EngineCore(
            Scheduler(config, tier=tier),
            permuted,
            MonotonicClock(),
            vocab_size=model.spec.vocab,
        )

    return start


def disk(path: Path, model: TinyModel, mode: Mode, size: int = 2**26) -> DiskTier:
    core = starter(model, mode)(8, 16, 1, None)
    block_bytes = core._executor._executor.block_bytes()  # type: ignore[attr-defined]
    return DiskTier(path, size, {"model": "tiny"}, block_bytes)


def flushed(core: EngineCore, tier: BlockTier) -> None:
    for _ in range(100_000):
        if not core.storing:
            break
        core.step()
    assert not core.storing or not tier.active


@contextmanager
def closing(tier: DiskTier) -> Iterator[DiskTier]:
    try:
        yield tier
    finally:
        tier.close(10.0)


def model_of(name: str, mode: Mode) -> TinyModel:
    model = tiny_random("llama", 3, layers=3)
    return windowed(model, (int(1.5 * mode.block), 0)) if name == "windows" else model


@pytest.mark.parametrize("kind", ["full", "windows"])
@pytest.mark.parametrize("name", MODES)
def test_a_restart_with_the_disk_tier_changes_nothing(tmp_path: Path, name: str, kind: str) -> None:
    mode = MODES[name]
    model = model_of(kind, mode)
    loaded = 0
    for seed in range(2):
        submissions = requests(seed, mode.block)
        expected = alone(starter(model, mode), submissions)
        for _ in range(2):
            with closing(disk(tmp_path / str(seed), model, mode)) as tier:
                start = starter(model, mode, tier)
                found, core = crowded(start, submissions, mode.tight, seed)
                assert found == expected
                flushed(core, tier)
                assert core.scheduler.stats().blocks_held == 0
                assert tier.active and tier.stats.errors == 0
        loaded += core.scheduler.stats().tier_loaded_total
    assert loaded > 0, "nothing came from the disk"


@pytest.mark.parametrize("name", MODES)
def test_a_host_tier_behind_small_pools_changes_nothing(name: str) -> None:
    mode = MODES[name]
    model = model_of("full", mode)
    submissions = requests(5, mode.block)
    expected = alone(starter(model, mode), submissions)
    tier = HostTier(2**26)
    for seed in (1, 2):
        found, core = crowded(starter(model, mode, tier), submissions, mode.tight, seed)
        assert found == expected
    assert core.scheduler.stats().tier_loaded_total > 0


def spoil_bits(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(200, len(data), 1777):
        data[at] ^= 1
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def swap_ends(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3] + data[len(data) // 2 :])


@pytest.mark.parametrize("harm", [spoil_bits, cut_off, swap_ends])
@pytest.mark.parametrize("name", MODES)
def test_damaged_files_change_nothing(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    mode = MODES[name]
    model = model_of("full", mode)
    submissions = requests(7, mode.block)
    expected = alone(starter(model, mode), submissions)
    with closing(disk(tmp_path, model, mode)) as tier:
        _, core = crowded(starter(model, mode, tier), submissions, mode.tight, 1)
        flushed(core, tier)
    for path in tmp_path.glob("*/*.kv"):
        harm(path)
    with closing(disk(tmp_path, model, mode)) as tier:
        found, core = crowded(starter(model, mode, tier), submissions, mode.tight, 2)
        assert found == expected
        assert tier.stats.errors > 0 and tier.active


@pytest.mark.parametrize("name", MODES)
def test_a_disk_that_fills_up_in_the_middle_changes_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = MODES[name]
    model = model_of("full", mode)
    submissions = requests(9, mode.block)
    expected = alone(starter(model, mode), submissions)
    with closing(disk(tmp_path, model, mode)) as tier:
        append, writes = tier._shelf.append, [0]

        def fails(head: bytes, data: bytes) -> object:
            writes[0] += 1
            if writes[0] > 2:
                raise OSError(28, "No space left on device")
            return append(head, data)

        monkeypatch.setattr(tier._shelf, "append", fails)
        found, core = crowded(starter(model, mode, tier), submissions, mode.tight, 2)
        assert found == expected
        flushed(core, tier)
        with tier._changed:
            assert tier._changed.wait_for(lambda: not tier.active, 10.0)


@pytest.mark.parametrize("name", MODES)
def test_a_tiny_bound_changes_nothing(tmp_path: Path, name: str) -> None:
    mode = MODES[name]
    model = model_of("full", mode)
    submissions = requests(11, mode.block)
    expected = alone(starter(model, mode), submissions)
    probe = disk(tmp_path / "probe", model, mode)
    block_bytes = probe._block_bytes
    probe.close()
    size = 8 * (block_bytes + 4096)
    for seed in (1, 2):
        with closing(disk(tmp_path / "tiny", model, mode, size)) as tier:
            found, _ = crowded(starter(model, mode, tier), submissions, mode.tight, seed)
            assert found == expected
        assert sum(path.stat().st_size for path in tmp_path.glob("tiny/*/*.kv")) <= size
