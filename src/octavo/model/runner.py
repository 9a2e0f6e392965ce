"""From an engine's configuration to an executor that is ready to run.

Owns: the order of loading: open, choose the backend, pack, allocate the cache.
Does not know: processes, scheduling. The configuration is any object with the fields it reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.model.decoder import Decoder
from octavo.model.errors import ModelError
from octavo.model.executor import ModelExecutor
from octavo.model.fingerprint import fingerprint
from octavo.model.info import ModelInfo
from octavo.model.kv_cache import TILE_KEYS, bytes_per_block, cache_layout
from octavo.model.metered import Metered, Progress
from octavo.model.registry import OpenedModel, open_model
from octavo.model.sizes import KV_DTYPES, kv_dtype
from octavo.ops import Ops
from octavo.ops.packing import DTYPES
from octavo.ops.select import BackendUnavailable, resolve_backend, select_ops

log = logging.getLogger(__name__)

_PLAIN = ("auto", "float32")
"""All that the reference backend computes in, and keeps keys and values in."""


class LoadConfig(Protocol):
    """What `load` reads of `engine.messages.EngineConfig`."""

    @property
    def model(self) -> str: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def pools(self) -> Sequence[int]: ...
    @property
    def block_size(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def quantize(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def row_at_a_time(self) -> bool: ...
    @property
    def kv_cache_dtype(self) -> str: ...


@dataclass(slots=True)
class Loaded:
    """`notes`: facts for people (backend, data types, bytes)."""

    executor: ModelExecutor
    info: ModelInfo
    fingerprint: str
    notes: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, **self.notes}


def load(
    config: LoadConfig,
    wrap: Callable[[Ops], Ops] | None = None,
    progress: Progress | None = None,
) -> Loaded:
    """Opens `config.model` (a path) and packs it. Raises ModelError with a code and a hint.

    `wrap` puts something of the caller's around the backend, e.g. a clock. `progress` is called
    with the bytes packed and the bytes in all, from any of the threads that pack.
    """
    ops = _choose_ops(config)
    if wrap is not None:
        ops = wrap(ops)
    cached = kv_dtype(ops.name, config.dtype, config.kv_cache_dtype)
    opened = open_model(config.model, config.max_model_len)
    try:
        print_of = fingerprint(
            opened.spec,
            opened.source,
            backend=ops.identity,
            dtype=config.dtype,
            kv_dtype=cached,
        )
        decoder = _pack(opened, ops, config.threads, progress)
    finally:
        opened.source.close()
    layout = cache_layout(opened.spec, config.block_size, cached)
    pools = tuple(config.pools) or (config.num_blocks,) * len(layout.layers)
    executor = ModelExecutor(
        decoder,
        ops,
        num_blocks=config.num_blocks,
        pools=pools,
        block_size=config.block_size,
        eos_ids=opened.info.eos_token_ids,
        kv_dtype=cached,
    )
    for note in ops.notes:
        log.info("%s", note)
    notes = {
        "backend": ops.name,
        "numerics": ops.identity,
        "dtype": config.dtype,
        "losses": ops.notes,
        "kv_dtype": layout.dtype,
        "kv_bytes": sum(
            blocks * bytes_per_block(layout, group, padded=ops.name == "cpu")
            for group, blocks in enumerate(pools)
        ),
        "threads": config.threads,
    }
    return Loaded(executor, opened.info, print_of, notes)


def _pack(opened: OpenedModel, ops: Ops, threads: int, progress: Progress | None) -> Decoder:
    if progress is None:
        return Decoder(opened.spec, opened.source, ops, threads)
    metered = Metered(opened.source, opened.info.file_bytes, progress)
    decoder = Decoder(opened.spec, metered, ops, threads)
    metered.finish()
    return decoder


def _choose_ops(config: LoadConfig) -> Ops:
    """The backend for `config`. Raises ModelError where it cannot be had, or cannot compute so."""
    try:
        backend = resolve_backend(config.backend)
    except ValueError as error:
        raise ModelError(str(error), "unknown_backend", "Use --backend auto.") from error
    allowed = _PLAIN if backend == "reference" else DTYPES
    _check_dtype("dtype", config.dtype, allowed, backend)
    _check_dtype("kv_cache_dtype", config.kv_cache_dtype, KV_DTYPES[backend], backend)
    if backend == "cpu" and config.block_size % TILE_KEYS:
        raise ModelError(
            f"block_size is {config.block_size}; the {backend} backend takes multiples of "
            f"{TILE_KEYS}",
            "unsupported_block_size",
            f"Use --block-size {-(-config.block_size // TILE_KEYS) * TILE_KEYS}, or --backend "
            "reference.",
        )
    try:
        return select_ops(
            backend,
            threads=config.threads,
            row_at_a_time=config.row_at_a_time,
            dtype=config.dtype,
            quantize=config.quantize,
        )
    except ValueError as error:
        raise ModelError(str(error), "unsupported_quantization", "Use --quantize none.") from error
    except BackendUnavailable as error:
        raise ModelError(str(error), "backend_missing", error.hint) from error
    except RuntimeError as error:
        raise ModelError(str(error), "backend_missing", "Use --backend reference.") from error


def _check_dtype(name: str, value: str, allowed: tuple[str, ...], backend: str) -> None:
    if value not in allowed:
        flag = "--" + name.replace("_", "-")
        raise ModelError(
            f"{name} is {value!r}; the {backend} backend takes {', '.join(allowed)}",
            "unsupported_dtype",
            f"Use {flag} auto, or another --backend.",
        )
