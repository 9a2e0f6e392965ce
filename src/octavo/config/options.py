"""The table of options: names, kinds, defaults, help, groups and other spellings.

Owns: `Options`, the one declaration from which flags, environment names, file keys, checks and
documentation are made. An option's environment name is OCTAVO_ and its own name.
Does not know: layers and files (resolve), or what an option does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from octavo.config.kinds import Bytes, Flag, Integer, Kind, Names, Number, Target, Text

DEFAULT_MODEL = "smollm2-135m"

MODEL, SERVER, ENGINE, MEMORY, LOGGING = "Model", "Server", "Engine", "Memory", "Logging"
BATCH = "Batch"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from: "default", "file", "env", "flag" or "derived", and the detail
    (which file, which variable, why)."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


DEFAULT = Source("default")


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. `name` is the key in files; the flag is the same with dashes."""

    name: str
    kind: Kind
    default: Any
    help: str
    group: str
    aliases: tuple[str, ...] = ()
    secret: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return "OCTAVO_" + self.name.upper()


def option(
    kind: Kind,
    default: Any,
    group: str,
    help: str,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    about = {"kind": kind, "help": help, "group": group, "aliases": aliases, "secret": secret}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options with their values. `sources` has an entry for each that is not a default."""

    model: str = option(
        Text(), DEFAULT_MODEL, MODEL, "A path, a name on the Hugging Face hub, or a built-in alias."
    )
    served_model_name: tuple[str, ...] = option(
        Names(), (), MODEL, "The names that clients may use for the model; the first is reported."
    )
    chat_template: str | None = option(
        Text(), None, MODEL, "A Jinja chat template, or the path of one, instead of the model's."
    )
    generation_config: str = option(
        Text(),
        "auto",
        MODEL,
        "Where sampling defaults come from: auto (the model), none, or a path.",
    )
    dtype: str = option(
        Text(("auto", "bfloat16", "float32")),
        "auto",
        MODEL,
        "How weights are held; auto: float32 ones so, others in bfloat16 (reference: all float32).",
    )
    quantize: str = option(
        Text(("none", "int8", "int4")),
        "none",
        MODEL,
        "What weights of plain floats are rounded to at load; int8: a scale for each output, "
        "int4: a scale and a minimum for 32 inputs.",
    )
    kv_cache_dtype: str = option(
        Text(("auto", "bfloat16", "float32", "int8")),
        "auto",
        MODEL,
        "How keys and values are kept; int8: a scale for each token and head; auto: bfloat16, or "
        "float32 with --dtype float32 and on the reference backend.",
    )
    offline: bool = option(
        Flag(), False, MODEL, "Never use the network; fail if a file is missing."
    )
    cache_dir: str | None = option(
        Text(), None, MODEL, "Where downloaded models are kept.", ("download_dir",)
    )

    host: str = option(Text(), "127.0.0.1", SERVER, "The address to listen on.")
    port: int = option(
        Integer(0, 65535), 8000, SERVER, "The port to listen on; 0 takes any free one."
    )
    api_key: tuple[str, ...] = option(
        Names(), (), SERVER, "A key that clients must send; may be repeated.", secret=True
    )
    api_key_file: str | None = option(
        Text(), None, SERVER, "A file of keys, one a line, each with an optional role before it."
    )
    allow_public: bool = option(
        Flag(), False, SERVER, "Listen on a public address even without a key."
    )
    allowed_origins: tuple[str, ...] = option(
        Names(), (), SERVER, "Web origins that browsers may call from (CORS)."
    )
    max_body_size: int = option(
        Bytes(1024), 32 * 1024**2, SERVER, "The largest request body that is read."
    )
    shutdown_timeout: float = option(
        Number(low=0, high=86400),
        30.0,
        SERVER,
        "Seconds that running requests get to finish after SIGTERM or Ctrl-C.",
    )
    sse_heartbeat: float = option(
        Number(low=0, high=3600),
        15.0,
        SERVER,
        "Seconds of silence after which a stream gets a comment line; 0: never.",
        ("sse_keep_alive_interval",),
    )
    watchdog_timeout: float = option(
        Number(above=0, high=86400),
        120.0,
        SERVER,
        "Seconds without a finished step, while work is present, until the engine counts as stuck.",
    )
    crash_dir: str | None = option(
        Text(),
        None,
        SERVER,
        "Where a report is written when the engine dies (the last steps, no content); unset: "
        "nowhere.",
    )

    max_model_len: int | None = option(
        Integer(1, 2**31 - 1),
        None,
        ENGINE,
        "The longest prompt and output together, in tokens; unset: as the model and memory allow.",
    )
    block_size: int = option(Integer(1, 1024), 16, ENGINE, "Tokens in a block of the KV cache.")
    max_num_seqs: int = option(
        Integer(1, 65536), 128, ENGINE, "The most sequences that run at once.", ("max_num_batches",)
    )
    max_num_batched_tokens: int = option(
        Integer(1, 2**20),
        512,
        ENGINE,
        "The most tokens computed in one step; smaller is smoother, larger is faster for prompts.",
    )
    scheduling_policy: str = option(
        Text(("fcfs", "priority", "fair")),
        "fcfs",
        ENGINE,
        "The order in which waiting requests start, within their class: first come, first served, "
        "by the priority that they give (lower first), or fair: API keys that have had fewer "
        "tokens go first.",
    )
    priority_ageing: float = option(
        Number(low=0, high=86400),
        60.0,
        ENGINE,
        "With --scheduling-policy priority, the seconds of waiting that count as much as one level "
        "of priority; 0: waiting counts for nothing.",
    )
    batch_share: float = option(
        Number(low=0, high=50),
        5.0,
        ENGINE,
        "The percentage of all computed tokens that requests of the batch class get for certain, "
        "whatever realtime work there is.",
    )
    target_tpot_ms: float | None = option(
        Target(200),
        None,
        ENGINE,
        "Move the limits of a step so that the time per output token stays at this target; on: "
        "200 ms.",
    )
    target_latency_ms: float | None = option(
        Number(above=0, high=86_400_000),
        None,
        ENGINE,
        "The same for a request as a whole, from its first step to its end.",
    )
    adaptive_rule: str = option(
        Text(("proportional", "step")),
        "proportional",
        ENGINE,
        "How the limits follow a target: in proportion to what is missing, or in steps of 1.5 up "
        "and 0.8 down.",
    )
    enable_prefix_caching: bool = option(
        Flag(), True, ENGINE, "Keep and share the KV cache of equal prompt beginnings."
    )
    max_waiting_requests: int = option(
        Integer(1, 2**31 - 1),
        4096,
        ENGINE,
        "The most requests that may wait; beyond it clients get 429.",
        ("max_num_queued_reqs",),
    )
    max_waiting_tokens: int = option(
        Integer(1, 2**53),
        8_000_000,
        ENGINE,
        "The most prompt tokens that may wait; beyond it clients get 429.",
        ("max_num_queued_tokens",),
    )
    max_queue_delay: float | None = option(
        Number(above=0, high=86400),
        None,
        ENGINE,
        "The longest wait, in seconds, that a new request may be predicted to have before it "
        "begins; beyond it clients get 429 with a computed Retry-After; unset: no bound.",
    )
    backend: str = option(
        Text(("auto", "cpu", "reference", "cuda")),
        "auto",
        ENGINE,
        "What computes: cpu (compiled kernels), reference (numpy) or cuda (PyTorch, from the extra "
        "octavo[gpu]); auto: cpu, or reference where the kernels are not installed.",
    )
    threads: int | None = option(
        Integer(1, 1024),
        None,
        ENGINE,
        "Threads to compute with; unset: OMP_NUM_THREADS, else the affinity mask and CPU quota.",
    )
    row_at_a_time: bool = option(
        Flag(),
        False,
        ENGINE,
        "On the reference backend, compute each row by itself: bit-identical output, but slow. "
        "The compiled backend always gives that.",
    )
    paranoid: bool = option(Flag(), False, ENGINE, "Check all invariants after every step.")

    memory_utilization: float = option(
        Number(above=0, high=1),
        0.9,
        MEMORY,
        "The share of the available memory that may be used.",
        ("gpu_memory_utilization",),
    )
    kv_memory: int | None = option(
        Bytes(),
        None,
        MEMORY,
        "The size of the KV cache in bytes, such as 4GiB.",
        ("kv_cache_memory_bytes",),
    )
    kv_tokens: int | None = option(
        Integer(1, 2**40), None, MEMORY, "The size of the KV cache in tokens."
    )

    kv_disk_dir: str | None = option(
        Text(),
        None,
        MEMORY,
        "Where blocks of the KV cache are kept on disk, so that the prefix cache survives a "
        "restart; unset: nowhere.",
    )
    kv_disk_size: int = option(
        Bytes(), 8 * 1024**3, MEMORY, "The most bytes that kv_disk_dir may hold."
    )

    batch_dir: str | None = option(
        Text(),
        None,
        BATCH,
        "Where files and durable batches are kept; unset: the server offers none.",
    )
    batch_database_url: str | None = option(
        Text(),
        None,
        BATCH,
        "A PostgreSQL database for the records (postgresql://...), instead of SQLite in the "
        "directory.",
        secret=True,
    )
    batch_max_rows: int = option(
        Integer(1, 10_000_000), 50_000, BATCH, "The most rows in one input file."
    )
    batch_max_file_size: int = option(
        Bytes(), 200 * 1024**2, BATCH, "The largest file that may be uploaded."
    )
    batch_max_live: int = option(
        Integer(1, 1_000_000), 100, BATCH, "The most batches of one key that are not over."
    )
    batch_max_in_flight: int = option(
        Integer(1, 65536), 64, BATCH, "The most rows of all batches that run at once."
    )

    log_level: str = option(
        Text(("debug", "info", "warning", "error")),
        "info",
        LOGGING,
        "The least severe messages that are logged.",
    )
    log_format: str = option(Text(("text", "json")), "text", LOGGING, "How log lines look.")

    sources: Mapping[str, Source] = field(default_factory=dict, compare=False)

    def source(self, name: str) -> Source:
        return self.sources.get(name, DEFAULT)

    def derive(self, why: str, **values: Any) -> Options:
        """A copy in which `values` were worked out from others; `why` is remembered."""
        marks = {name: Source("derived", why) for name in values}
        return dataclasses.replace(self, **values, sources={**self.sources, **marks})


@cache
def table() -> tuple[Option, ...]:
    """The rows of the table, in order."""
    return tuple(
        Option(name=entry.name, default=entry.default, **entry.metadata)
        for entry in dataclasses.fields(Options)
        if "kind" in entry.metadata
    )
