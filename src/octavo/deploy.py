"""From options to what can be started: a model found, memory planned, an engine configured.

Owns: the one composition that serving, checking, the library and the old entry point share.
Does not know: how anything is shown, HTTP, or how an engine runs.

    Options --> threads (machine) --> path (fetch) --> ModelInfo (inspect) --> MemoryPlan
            --> EngineConfig
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config import ConfigError, Options
from octavo.core.kv_pools import KvGroup
from octavo.core.memory import MemoryLimits, MemoryPlan, ModelFacts, PlanError, plan_memory
from octavo.engine.messages import EngineConfig
from octavo.machine import Machine, Threads, choose_threads, inspect
from octavo.model.info import ModelInfo
from octavo.model.sizes import sized
from octavo.model.tokenizer_files import require_tokenizer

DISK_BUFFERS = 64 * 1024**2
"""Bytes of blocks that the disk tier has under way at the most, half of them each way
(tiers.disk)."""

Progress = Callable[[str, int, int | None], None]
"""Called while a model is fetched: (what, bytes done, bytes in all or None)."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything decided before an engine starts. `options` has what was derived filled in;
    `generation` holds the sampling defaults; `warnings` are for whoever started it."""

    options: Options
    machine: Machine
    threads: Threads
    model: ModelInfo
    plan: MemoryPlan
    engine: EngineConfig
    generation: Mapping[str, Any]
    warnings: tuple[str, ...]


def threads_for(options: Options, machine: Machine | None = None) -> Threads:
    """How many threads will compute, and why. Cheap: it is called before numpy is loaded."""
    source = options.source("threads")
    if source.kind == "derived" and options.threads is not None:
        return Threads(options.threads, source.detail)
    return choose_threads(machine or inspect(), options.threads)


def with_threads(options: Options, machine: Machine | None = None) -> Options:
    """The options with the number of threads decided."""
    threads = threads_for(options, machine)
    return options.derive(threads.reason, threads=threads.count)


def find_model(options: Options, progress: Progress | None = None) -> ModelInfo:
    """The path of the model, fetched if need be, and its facts. Raises ModelError."""
    from octavo.model.fetch import resolve
    from octavo.model.registry import inspect as inspect_model

    path = resolve(
        options.model, cache_dir=options.cache_dir, offline=options.offline, progress=progress
    )
    return inspect_model(path)


def largest_context(options: Options, model: ModelInfo, machine: Machine) -> int:
    """The longest max_model_len that fits, in tokens; 0 if the model itself does not."""
    try:
        unset = dataclasses.replace(options, max_model_len=None)
        return plan(unset, model, machine).max_model_len
    except PlanError:
        return 0


def plan(options: Options, model: ModelInfo, machine: Machine) -> MemoryPlan:
    """The memory plan of `model` on `machine`. Raises core.memory.PlanError."""
    asked_for_share = options.source("memory_utilization").kind != "default"
    limits = MemoryLimits(
        memory=machine.memory,
        utilization=options.memory_utilization,
        kv_bytes=options.kv_memory,
        kv_tokens=options.kv_tokens,
        max_model_len=options.max_model_len,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        tier_bytes=DISK_BUFFERS if options.kv_disk_dir is not None else 0,
    )
    if asked_for_share:
        # Whoever names a share wants it used, for as many full-length sequences as can run.
        limits = dataclasses.replace(limits, typical_len=None)
    model = sized(
        model,
        backend=options.backend,
        dtype=options.dtype,
        quantize=options.quantize,
        kv_cache_dtype=options.kv_cache_dtype,
    )
    facts = ModelFacts(
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        workspace_bytes_per_token=model.workspace_bytes_per_token,
        workspace_bytes=model.workspace_bytes,
        max_position=model.max_position,
        kv_groups=tuple(KvGroup(group.window, group.bytes_per_token) for group in model.kv_groups),
    )
    return plan_memory(facts, limits)


def prepare(
    options: Options, *, model: ModelInfo | None = None, machine: Machine | None = None,
    progress: Progress | None = None,
) -> Deployment:  # fmt: skip
    """Find, look and plan. Nothing is loaded or listened on. Raises ConfigError, ModelError and
    core.memory.PlanError."""
    machine = machine or inspect()
    threads = threads_for(options, machine)
    model = model or find_model(options, progress)
    require_tokenizer(model)
    memory = plan(options, model, machine)
    names = options.served_model_name or (model_name(options.model, model),)
    derived = with_threads(options, machine)
    if options.max_model_len is None:
        why = "the most that memory holds" if memory.shortened else "the model's own limit"
        derived = derived.derive(why, max_model_len=memory.max_model_len)
    if not options.served_model_name:
        derived = derived.derive("the model", served_model_name=names)
    if options.kv_tokens is None:
        why = "kv_memory" if options.kv_memory is not None else machine.memory_reason
        derived = derived.derive(why, kv_tokens=memory.kv_tokens)
    return Deployment(
        options=derived,
        machine=machine,
        threads=threads,
        model=model,
        plan=memory,
        engine=_engine_config(derived, model, memory, names[0], threads.count),
        generation=generation_defaults(options, model),
        warnings=_warnings(model, memory),
    )


def model_name(asked: str, model: ModelInfo) -> str:
    """What clients call the model by default: what was asked for, or a path's last part."""
    return model.name if Path(asked).exists() else asked


def generation_defaults(options: Options, model: ModelInfo) -> Mapping[str, Any]:
    """The sampling defaults that `generation_config` stands for. Raises ConfigError."""
    if options.generation_config == "auto":
        return model.generation
    if options.generation_config == "none":
        return {}
    from octavo.model.generation import from_generation_config

    path = Path(options.generation_config)
    path = path / "generation_config.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"generation_config: cannot read {path}: {error}",
            "give auto, none, or the path of a JSON file",
            "generation_config",
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"generation_config: {path} must hold one JSON object")
    return from_generation_config(data, str(path))


def _engine_config(
    options: Options, model: ModelInfo, memory: MemoryPlan, name: str, threads: int
) -> EngineConfig:
    return EngineConfig(
        model=model.path,
        served_name=name,
        max_model_len=memory.max_model_len,
        num_blocks=memory.num_blocks,
        pools=memory.pools,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_waiting_requests=options.max_waiting_requests,
        max_waiting_tokens=options.max_waiting_tokens,
        max_queue_delay=options.max_queue_delay,
        scheduling_policy=options.scheduling_policy,
        priority_ageing=options.priority_ageing,
        batch_share=options.batch_share / 100,
        target_tpot=_seconds(options.target_tpot_ms),
        target_latency=_seconds(options.target_latency_ms),
        adaptive_rule=options.adaptive_rule,
        enable_prefix_caching=options.enable_prefix_caching,
        dtype=options.dtype,
        quantize=options.quantize,
        kv_cache_dtype=options.kv_cache_dtype,
        backend=options.backend,
        threads=threads,
        row_at_a_time=options.row_at_a_time,
        paranoid=options.paranoid,
        kv_disk_dir=str(Path(options.kv_disk_dir).absolute()) if options.kv_disk_dir else None,
        kv_disk_size=options.kv_disk_size,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _warnings(model: ModelInfo, memory: MemoryPlan) -> tuple[str, ...]:
    if not memory.shortened:
        return ()
    return (
        f"max_model_len is {memory.max_model_len:,} tokens, the most that memory holds; "
        f"the model itself could take {model.max_position:,}",
    )
