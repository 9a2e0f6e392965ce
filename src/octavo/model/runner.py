"""From an engine's configuration to an executor that is ready to run.

Owns: the order of loading: open, choose the backend, pack, allocate the cache.
Does not know: processes, scheduling. The configuration is any object with the fields it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.model.decoder import Decoder
from octavo.model.errors import ModelError
from octavo.model.executor import ModelExecutor
from octavo.model.fingerprint import fingerprint
from octavo.model.info import ModelInfo
from octavo.model.kv_cache import bytes_per_block, cache_layout
from octavo.model.registry import open_model
from octavo.ops import Ops
from octavo.ops.select import select_ops

COMPUTE_DTYPE = "float32"
"""The reference backend computes, and keeps keys and values, in this."""


class LoadConfig(Protocol):
    """What `load` reads of `engine.messages.EngineConfig`."""

    @property
    def model(self) -> str: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
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


@dataclass(slots=True)
class Loaded:
    """`notes`: facts for people (backend, data types, bytes)."""

    executor: ModelExecutor
    info: ModelInfo
    fingerprint: str
    notes: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, **self.notes}


def load(config: LoadConfig, wrap: Callable[[Ops], Ops] | None = None) -> Loaded:
    """Opens `config.model` (a path) and packs it. Raises ModelError with a code and a hint.

    `wrap` puts something of the caller's around the backend, e.g. a clock.
    """
    if config.dtype not in ("auto", COMPUTE_DTYPE):
        raise ModelError(
            f"dtype is {config.dtype!r}; the reference backend computes in {COMPUTE_DTYPE}",
            "unsupported_dtype",
            f"Use --dtype auto or --dtype {COMPUTE_DTYPE}.",
        )
    try:
        ops = select_ops(
            config.backend,
            threads=config.threads,
            row_at_a_time=config.row_at_a_time,
            quantize=config.quantize,
        )
    except ValueError as error:
        raise ModelError(
            str(error), "unknown_backend", "Use --backend auto and --quantize none."
        ) from error
    if wrap is not None:
        ops = wrap(ops)
    opened = open_model(config.model, config.max_model_len)
    try:
        print_of = fingerprint(
            opened.spec,
            opened.source,
            backend=ops.identity,
            dtype=COMPUTE_DTYPE,
            kv_dtype=COMPUTE_DTYPE,
        )
        decoder = Decoder(opened.spec, opened.source, ops, config.threads)
    finally:
        opened.source.close()
    executor = ModelExecutor(
        decoder,
        ops,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        eos_ids=opened.info.eos_token_ids,
    )
    layout = cache_layout(opened.spec, config.block_size, COMPUTE_DTYPE)
    notes = {
        "backend": ops.name,
        "numerics": ops.identity,
        "dtype": COMPUTE_DTYPE,
        "kv_dtype": layout.dtype,
        "kv_bytes": bytes_per_block(layout) * config.num_blocks,
        "threads": config.threads,
    }
    return Loaded(executor, opened.info, print_of, notes)
