"""Putting an engine together from its configuration: the one place that joins core and model.

Owns: importing the loader that the configuration names, and the order of things: load, warm up,
schedule.
Does not know: what the loader does, or whether the engine lives in a process of its own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from octavo.core.blocks import GroupSpec
from octavo.core.config import SchedulerConfig
from octavo.core.scheduler import Scheduler
from octavo.engine.clock import MonotonicClock
from octavo.engine.engine_core import EngineCore, Loaded
from octavo.engine.errors import EngineFatal
from octavo.engine.messages import EngineConfig
from octavo.engine.recorder import Recorder
from octavo.tiers.disk import DiskTier
from octavo.tiers.executor import Blocks, TieredExecutor

Progress = Callable[[int, int], None]
"""Called with (bytes of weights loaded, bytes in all)."""


def load(config: EngineConfig, progress: Progress | None = None) -> Loaded:
    """Calls the loader `config.executor` ("module:function"), which takes the config and, if it can
    tell how far it is, `progress`. Raises what it raises."""
    module, _, name = config.executor.partition(":")
    try:
        loader = cast(Callable[..., Loaded], getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError) as error:
        raise EngineFatal(
            f"the executor {config.executor!r} cannot be imported: {error}",
            "executor_import_failed",
        ) from error
    if progress is not None and "progress" in inspect.signature(loader).parameters:
        return loader(config, progress=progress)
    return loader(config)


def build_engine_core(
    config: EngineConfig,
    *,
    recorder: Recorder | None = None,
    mark: Callable[[Sequence[str]], None] | None = None,
    progress: Progress | None = None,
) -> tuple[EngineCore, Loaded]:
    """Loads the model, runs the executor's warm-up steps and returns an engine that is ready."""
    loaded = load(config, progress)
    warm_up = getattr(loaded.executor, "warm_up", None)
    if warm_up is not None:
        warm_up()
    tier = open_tier(config, loaded)
    executor = (
        loaded.executor if tier is None else TieredExecutor(cast(Blocks, loaded.executor), tier)
    )
    core = EngineCore(
        Scheduler(_scheduler_config(config, loaded), tier=tier),
        executor,
        MonotonicClock(),
        vocab_size=loaded.info.vocab_size,
        recorder=recorder,
        mark=mark,
        paranoid=config.paranoid,
        tier=tier,
    )
    return core, loaded


def open_tier(config: EngineConfig, loaded: Loaded) -> DiskTier | None:
    """The tier that the configuration asks for. Raises EngineFatal where it can hold nothing."""
    if config.kv_disk_dir is None or not config.enable_prefix_caching:
        return None
    executor = cast(Any, loaded.executor)
    block_bytes = executor.block_bytes()
    facts = {
        "fingerprint": loaded.fingerprint,
        "block_size": config.block_size,
        "block_bytes": block_bytes,
        "windows": [group.window for group in loaded.info.kv_groups],
        "kv_dtype": str(loaded.describe().get("kv_dtype", "")),
    }
    try:
        return DiskTier(config.kv_disk_dir, config.kv_disk_size, facts, block_bytes)
    except ValueError as error:
        raise EngineFatal(str(error), "kv_disk_too_small") from error


def _scheduler_config(config: EngineConfig, loaded: Loaded) -> SchedulerConfig:
    return SchedulerConfig(
        num_blocks=config.num_blocks,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_waiting_requests=config.max_waiting_requests,
        max_waiting_tokens=config.max_waiting_tokens,
        max_queue_delay=config.max_queue_delay,
        enable_prefix_caching=config.enable_prefix_caching,
        eos_token_ids=tuple(loaded.info.eos_token_ids),
        fingerprint=loaded.fingerprint,
        policy=config.scheduling_policy,
        priority_ageing=config.priority_ageing,
        batch_share=config.batch_share,
        target_tpot=config.target_tpot,
        target_latency=config.target_latency,
        adaptive_rule=config.adaptive_rule,
        groups=_groups(config, loaded),
    )


def _groups(config: EngineConfig, loaded: Loaded) -> tuple[GroupSpec, ...]:
    """The model's KV groups with their pools. Raises EngineFatal where there are not as many."""
    windows = [group.window for group in loaded.info.kv_groups] or [0]
    pools = config.pools or (config.num_blocks,) * len(windows)
    if len(pools) != len(windows):
        raise EngineFatal(
            f"{len(pools)} pools are planned for the {len(windows)} KV groups of the model",
            "wrong_kv_groups",
        )
    return tuple(
        GroupSpec(blocks, config.block_size, window)
        for blocks, window in zip(pools, windows, strict=True)
    )
