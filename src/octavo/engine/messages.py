"""The frames between the API process and the engine process: plain data, msgpack, no pickle.

Owns: the message types and their encoding.
Does not know: sockets (channel), processes (process, client) or scheduling.

Client to engine: Start (once), Submit, Abort, Control.
Engine to client: Loading (now and then), Ready (once), Tokens (one a step), Stats, Reply, Fatal.
"""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.core.request import Output, Submission


class EngineConfig(msgspec.Struct, kw_only=True, frozen=True):
    """Everything the engine process needs; decided (and planned) before it starts.

    `num_blocks` is the planned pool, `pools` that of each KV group (empty: `num_blocks` for each).
    `executor` is a dotted `module:function` that takes the
    config and returns an `engine.engine_core.Loaded`; tests put their own there.
    """

    model: str
    served_name: str
    max_model_len: int
    num_blocks: int
    pools: tuple[int, ...] = ()
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_waiting_requests: int = 4096
    max_waiting_tokens: int = 8_000_000
    max_queue_delay: float | None = None
    scheduling_policy: str = "fcfs"
    priority_ageing: float = 60.0
    batch_share: float = 0.05
    target_tpot: float | None = None
    target_latency: float | None = None
    adaptive_rule: str = "proportional"
    enable_prefix_caching: bool = True
    dtype: str = "auto"
    quantize: str = "none"
    backend: str = "auto"
    threads: int = 1
    row_at_a_time: bool = False
    kv_cache_dtype: str = "auto"
    kv_disk_dir: str | None = None
    kv_disk_size: int = 0
    paranoid: bool = False
    executor: str = "octavo.model.runner:load"
    extra: dict[str, Any] = {}


class Start(msgspec.Struct, tag="start"):
    config: EngineConfig


class Submit(msgspec.Struct, tag="submit"):
    model: str
    submission: Submission


class Abort(msgspec.Struct, tag="abort"):
    """Abort one choice of a request, or all (`choice` None)."""

    model: str
    request_id: str
    choice: int | None = None


class Control(msgspec.Struct, tag="control"):
    """`op`: "stats", "drain", "shutdown", "reset_prefix_cache", "recorder" (last steps)."""

    id: int
    op: str
    args: dict[str, Any] = {}


class Loading(msgspec.Struct, tag="loading"):
    """How far it is: `done` of `total` bytes of weights."""

    done: int
    total: int


class Ready(msgspec.Struct, tag="ready"):
    """Loaded and warmed up. `info` describes what was loaded (backend, fingerprint, seconds)."""

    model: str
    info: dict[str, Any] = {}


class Refusal(msgspec.Struct):
    request_id: str
    message: str
    code: str
    param: str | None = None
    retry_after: float | None = None


class Tokens(msgspec.Struct, tag="tokens"):
    """All that one step yields: outputs, and submissions that were refused."""

    model: str
    step: int
    outputs: list[Output] = []
    refused: list[Refusal] = []


class EngineStats(msgspec.Struct, tag="stats", kw_only=True):
    """A snapshot of the engine. Counters (`*_total`) count since the engine process began;
    the rest are values now. Block figures are in blocks of `block_size` tokens."""

    model: str
    step: int = 0
    running: int = 0
    waiting: int = 0
    running_by_class: dict[str, int] = {}
    """Of `running`, by class: "realtime", "batch"."""
    waiting_by_class: dict[str, int] = {}
    waiting_tokens: int = 0
    blocks_total: int = 0
    blocks_held: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    block_size: int = 16
    group_blocks: dict[str, int] = {}
    """The pool of each KV group ("full", "window 512"); the figures above are sums over them."""
    group_held: dict[str, int] = {}
    slots_filled: int = 0
    """Token slots written in held blocks (each physical block once)."""
    logical_blocks: int = 0
    """Sum of all tables' lengths: over `blocks_held` it is the share ratio."""
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    generated_tokens_total: int = 0
    computed_tokens_total: int = 0
    preemptions_total: int = 0
    preemptions_by_total: dict[str, int] = {}
    """By cause and class: "blocks/realtime", "class/batch"."""
    adaptive_rows: int = 0
    """Rows that a step may have now, where they follow a target; else the fixed limit."""
    adaptive_tokens: int = 0
    adaptive_tpot: float = 0.0
    """Mean of the last times between tokens, in seconds; 0 without a target."""
    adaptive_latency: float = 0.0
    adaptive_changes_total: dict[str, int] = {}
    """How often the limits were "raised" and "lowered"."""
    batch_credit: int = 0
    """Tokens that the batch class is owed."""
    copies_total: int = 0
    blocks_evicted_total: int = 0
    finished_total: dict[str, int] = {}
    refused_total: dict[str, int] = {}
    tier_hits_total: int = 0
    tier_misses_total: int = 0
    tier_stored_total: int = 0
    tier_loaded_total: int = 0
    tier_errors_total: int = 0
    tier_bytes: int = 0
    tier_active: bool = False
    """Whether there is a tier for blocks outside the pools, and it works. Tier figures count
    blocks."""
    blocks_reclaimed_total: dict[str, int] = {}
    prefix_hit_rate: float = 0.0
    nonfinite_total: int = 0
    steps_total: int = 0
    step_seconds_total: float = 0.0


class Reply(msgspec.Struct, tag="reply"):
    id: int
    result: dict[str, Any] = {}
    error: str | None = None


class Fatal(msgspec.Struct, tag="fatal"):
    """The engine cannot go on (or could not start). `code` is stable for programs; `hint` says
    what to do, where that is known."""

    message: str
    code: str = "engine_failure"
    hint: str | None = None


ToEngine = Start | Submit | Abort | Control
ToClient = Loading | Ready | Tokens | EngineStats | Reply | Fatal

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_client = msgspec.msgpack.Decoder(ToClient)


def encode(message: ToEngine | ToClient) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises msgspec.ValidationError for anything that is not a message to the engine."""
    return _to_engine.decode(data)


def decode_to_client(data: bytes) -> ToClient:
    """Raises msgspec.ValidationError for anything that is not a message to the client."""
    return _to_client.decode(data)
