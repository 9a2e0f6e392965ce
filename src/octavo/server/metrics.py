"""Prometheus metrics: the table of names, and what feeds them.

Owns: every metric's name, type, labels and buckets; the snapshot's way into gauges and counters.
Does not know: HTTP routes or sampling. `metric_reference` is what the reference page is made of.

Names are vLLM's where the meaning is the same, with the prefix `octavo:`. All times are seconds.
Labels come from bounded sets: the served name, route templates, status codes, finish reasons,
causes, the KV groups of the model, the two classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from octavo.core.request import ServiceClass
from octavo.engine.messages import EngineStats

FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
SLOW = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
    320.0, 640.0, 1280.0, 2560.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric; `labels` are beside `model_name`, which every metric of the engine has."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE = (
    Row("num_requests_running", "gauge", "Sequences that are running."),
    Row("num_requests_waiting", "gauge", "Sequences that wait to run."),
    Row("class_requests_running", "gauge", "Sequences of a class that run.", ("service_class",)),
    Row("class_requests_waiting", "gauge", "Sequences of a class that wait.", ("service_class",)),
    Row("batch_credit_tokens", "gauge", "Tokens owed to the batch class; below 0: had too much."),
    Row("adaptive_max_num_seqs", "gauge", "Rows that a step may have now (--target-tpot-ms)."),
    Row("adaptive_max_num_batched_tokens", "gauge", "Tokens that a step may have now."),
    Row("adaptive_tpot_seconds", "gauge", "Mean of the last times between tokens; 0: no target."),
    Row("adaptive_latency_seconds", "gauge", "Mean of the last requests' times; 0: no target."),
    Row("adaptive_changes", "counter", "Moves of a step's limits.", ("direction",)),
    Row("num_waiting_tokens", "gauge", "Prompt tokens of the sequences that wait."),
    Row("kv_cache_usage_perc", "gauge", "Share of KV blocks held, 0 to 1, in the fullest group."),
    Row("kv_blocks_total", "gauge", "KV blocks in the pools."),
    Row("kv_blocks_held", "gauge", "KV blocks that sequences hold."),
    Row("kv_blocks_cached", "gauge", "KV blocks kept only for the prefix cache."),
    Row("kv_blocks_free", "gauge", "KV blocks that hold nothing."),
    Row("kv_group_blocks", "gauge", "KV blocks in the pool of a KV group.", ("kv_group",)),
    Row("kv_group_held", "gauge", "KV blocks of a group that sequences hold.", ("kv_group",)),
    Row("kv_slots_filled_ratio", "gauge", "Filled token slots over slots of held blocks, 0 to 1."),
    Row("kv_share_ratio", "gauge", "Blocks in all tables over blocks held; above 1: shared."),
    Row("prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix cache."),
    Row("prefix_cache_hits", "counter", "Prompt tokens found in the prefix cache."),
    Row(
        "prefix_cache_hit_rate", "gauge",
        "Share of prompt tokens found in the prefix cache, of the last 1,000 requests, 0 to 1.",
    ),
    Row("num_preemptions", "counter", "Sequences preempted, to be computed again later."),
    Row(
        "preemptions_by_cause", "counter",
        "Sequences preempted, by cause (blocks: others needed them; class: realtime came) and "
        "class.", ("cause", "service_class"),
    ),
    Row("kv_block_copies", "counter", "Blocks copied on write."),
    Row("kv_blocks_evicted", "counter", "Cached blocks reused for something else."),
    Row("kv_tier_hits", "counter", "KV blocks asked of the disk tier."),
    Row("kv_tier_misses", "counter", "Prompt blocks that neither the pool nor the tier had."),
    Row("kv_tier_stored", "counter", "KV blocks written to the disk tier."),
    Row("kv_tier_loaded", "counter", "KV blocks read back from the disk tier."),
    Row("kv_tier_errors", "counter", "Damaged blocks or files, and failures, of the disk tier."),
    Row("kv_tier_bytes", "gauge", "Bytes that the disk tier holds."),
    Row("kv_tier_active", "gauge", "1 while there is a disk tier that works, else 0."),
    Row(
        "kv_blocks_reclaimed", "counter",
        "Blocks that went from sequences back to the pool, by cause: finished, aborted, failed, "
        "expired (deadline), preempted, window (slid out of it).", ("cause",),
    ),
    Row("prompt_tokens", "counter", "Prompt tokens of all sequences."),
    Row("generation_tokens", "counter", "Tokens generated."),
    Row("computed_tokens", "counter", "Tokens computed, prompts and recomputation included."),
    Row("nonfinite_logits", "counter", "Rows whose logits were not finite."),
    Row("engine_steps", "counter", "Steps of the engine."),
    Row("engine_step_seconds", "counter", "Time spent in steps."),
    Row("request_refused", "counter", "Submissions refused by the engine.", ("reason",)),
    Row("engine_restarts", "counter", "Restarts of the engine process."),
    Row("engine_ready", "gauge", "1 while new requests are served, else 0."),
    Row("batches_live", "gauge", "Durable batches that are not over."),
    Row("batch_rows_pending", "gauge", "Rows of live batches that are not begun."),
    Row("batch_rows_running", "gauge", "Rows of batches in flight."),
    Row("batch_rows_done", "counter", "Rows of batches answered since the start."),
    Row("batch_rows_failed", "counter", "Rows of batches that ended in an error."),
    Row(
        "request_deadline_exceeded", "counter",
        "Prompts that were not complete at their deadline, by how far they had come: waiting or "
        "running.", ("stage",),
    ),
    Row("request_success", "counter", "Ended choices, by finish reason.", ("finished_reason",)),
    Row("time_to_first_token_seconds", "histogram", "Arrival to first token, a prompt.", (), SLOW),
    Row("inter_token_latency_seconds", "histogram", "Between outputs of a choice.", (), FAST),
    Row(
        "request_time_per_output_token_seconds", "histogram",
        "Mean time per output token after the first, a choice.", (), FAST,
    ),
    Row("e2e_request_latency_seconds", "histogram", "Arrival to the end, a prompt.", (), SLOW),
    Row("request_queue_time_seconds", "histogram", "Arrival to first step, a prompt.", (), SLOW),
    Row(
        "class_queue_time_seconds", "histogram", "Arrival to first step, a prompt, by class.",
        ("service_class",), SLOW,
    ),
    Row("request_prompt_tokens", "histogram", "Tokens of a prompt.", (), TOKENS),
    Row("request_generation_tokens", "histogram", "Tokens generated for a choice.", (), TOKENS),
    Row("request_params_n", "histogram", "Choices asked for.", (), COUNTS),
    Row("request_num_preemptions", "histogram", "Preemptions of a choice.", (), (0, *COUNTS)),
    Row(
        "http_requests", "counter", "HTTP requests, by route template.",
        ("method", "handler", "status"),
    ),
    Row("http_request_duration_seconds", "histogram", "HTTP requests.", ("handler",), SLOW),
)  # fmt: skip
PREFIX = "octavo:"
MODEL = "model_name"
REQUEST_COUNTERS = frozenset({"request_success", "request_deadline_exceeded", "http_requests"})
"""Counters fed by the request path; the others come from the engine's snapshots."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


def metric_reference() -> list[tuple[str, str, str]]:
    """(name as it is scraped, type, help) of every metric, in the table's order."""
    return [
        (PREFIX + row.name + ("_total" if row.type == "counter" else ""), row.type, row.help)
        for row in TABLE
    ]


@dataclass(frozen=True, slots=True)
class EngineView:
    """What a scrape shows of the engine. Counters in `stats` never fall: the engine's client adds
    those of processes that were replaced."""

    stats: EngineStats | None
    restarts: int
    ready: bool


class Metrics:
    """All metrics of one server, in a registry of its own.

    `model` is the served name, the only value its label ever has; `view` is asked at each scrape.
    """

    def __init__(self, model: str, view: Callable[[], EngineView]) -> None:
        self.registry = CollectorRegistry()
        self.view = view
        self._model = model
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for row in TABLE:
            labels = row.labels if row.name.startswith("http_") else (MODEL, *row.labels)
            name = PREFIX + row.name
            if row.type == "histogram":
                self._histograms[row.name] = Histogram(
                    name, row.help, labels, registry=self.registry, buckets=row.buckets
                )
            elif row.name in REQUEST_COUNTERS:
                self._counters[row.name] = Counter(name, row.help, labels, registry=self.registry)
        self.ttft = self._histogram("time_to_first_token_seconds")
        self.itl = self._histogram("inter_token_latency_seconds")
        self.tpot = self._histogram("request_time_per_output_token_seconds")
        self.e2e = self._histogram("e2e_request_latency_seconds")
        self._queue_time = self._histogram("request_queue_time_seconds")
        self._class_queue_time = {
            one: self._histograms["class_queue_time_seconds"].labels(model, one.value)
            for one in ServiceClass
        }
        self.prompt_tokens = self._histogram("request_prompt_tokens")
        self.generation_tokens = self._histogram("request_generation_tokens")
        self.choices = self._histogram("request_params_n")
        self.preemptions = self._histogram("request_num_preemptions")
        self.batches: Callable[[], Mapping[str, float]] = dict
        """Values of durable batches by metric; empty on a server without."""
        self.registry.register(_EngineCollector(model, view, lambda: self.batches()))

    def queued(self, service_class: ServiceClass, seconds: float) -> None:
        """How long a prompt waited for its first step."""
        self._queue_time.observe(seconds)
        self._class_queue_time[service_class].observe(seconds)

    def finished(self, reason: str) -> None:
        """Count a choice that ended."""
        self._counters["request_success"].labels(self._model, reason).inc()

    def expired(self, begun: bool) -> None:
        """Count a prompt that was not complete at its deadline."""
        stage = "running" if begun else "waiting"
        self._counters["request_deadline_exceeded"].labels(self._model, stage).inc()

    def http(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count an HTTP request; `handler` is a route template."""
        method = method if method in _METHODS else "other"
        self._counters["http_requests"].labels(method, handler, str(status)).inc()
        self._histograms["http_request_duration_seconds"].labels(handler).observe(seconds)

    def scrape(self) -> tuple[bytes, str]:
        """The exposition and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _histogram(self, name: str) -> Histogram:
        return self._histograms[name].labels(self._model)


class _EngineCollector(Collector):
    """Shows the engine's snapshot, row by row of the table."""

    def __init__(
        self,
        model: str,
        view: Callable[[], EngineView],
        batches: Callable[[], Mapping[str, float]],
    ) -> None:
        self._model = model
        self._view = view
        self._batches = batches

    def collect(self) -> Iterable[Metric]:
        values = engine_values(self._view())
        values |= {name: {"": value} for name, value in self._batches().items()}
        for row in TABLE:
            if row.name not in values:
                continue
            kind = GaugeMetricFamily if row.type == "gauge" else CounterMetricFamily
            family = kind(PREFIX + row.name, row.help, labels=(MODEL, *row.labels))
            for label, value in values[row.name].items():
                labels = label.split("/", len(row.labels) - 1) if row.labels else []
                family.add_metric([self._model, *labels], value)
            yield family


def engine_values(view: EngineView) -> dict[str, dict[str, float]]:
    """By metric, by label values ("" where there is none, "a/b" for two). Before the first
    snapshot: nought."""
    stats = view.stats or EngineStats(model="")
    held = stats.blocks_held
    plain: dict[str, float] = {
        "num_requests_running": stats.running,
        "num_requests_waiting": stats.waiting,
        "adaptive_max_num_seqs": stats.adaptive_rows,
        "adaptive_max_num_batched_tokens": stats.adaptive_tokens,
        "adaptive_tpot_seconds": stats.adaptive_tpot,
        "adaptive_latency_seconds": stats.adaptive_latency,
        "batch_credit_tokens": stats.batch_credit,
        "num_waiting_tokens": stats.waiting_tokens,
        "kv_cache_usage_perc": _usage(stats),
        "kv_blocks_total": stats.blocks_total,
        "kv_blocks_held": held,
        "kv_blocks_cached": stats.blocks_cached,
        "kv_blocks_free": stats.blocks_free,
        "kv_slots_filled_ratio": stats.slots_filled / (held * stats.block_size) if held else 1.0,
        "kv_share_ratio": stats.logical_blocks / held if held else 1.0,
        "prefix_cache_queries": stats.prompt_tokens_total,
        "prefix_cache_hits": stats.cached_tokens_total,
        "num_preemptions": stats.preemptions_total,
        "prefix_cache_hit_rate": stats.prefix_hit_rate,
        "kv_block_copies": stats.copies_total,
        "kv_blocks_evicted": stats.blocks_evicted_total,
        "kv_tier_hits": stats.tier_hits_total,
        "kv_tier_misses": stats.tier_misses_total,
        "kv_tier_stored": stats.tier_stored_total,
        "kv_tier_loaded": stats.tier_loaded_total,
        "kv_tier_errors": stats.tier_errors_total,
        "kv_tier_bytes": stats.tier_bytes,
        "kv_tier_active": float(stats.tier_active),
        "prompt_tokens": stats.prompt_tokens_total,
        "generation_tokens": stats.generated_tokens_total,
        "computed_tokens": stats.computed_tokens_total,
        "nonfinite_logits": stats.nonfinite_total,
        "engine_steps": stats.steps_total,
        "engine_step_seconds": stats.step_seconds_total,
        "engine_restarts": view.restarts,
        "engine_ready": float(view.ready),
    }
    values = {name: {"": float(value)} for name, value in plain.items()}
    values["kv_group_blocks"] = {name: float(n) for name, n in stats.group_blocks.items()}
    values["kv_group_held"] = {name: float(n) for name, n in stats.group_held.items()}
    values["kv_blocks_reclaimed"] = {
        cause: float(n) for cause, n in stats.blocks_reclaimed_total.items()
    }
    values["class_requests_running"] = {one: float(n) for one, n in stats.running_by_class.items()}
    values["class_requests_waiting"] = {one: float(n) for one, n in stats.waiting_by_class.items()}
    values["preemptions_by_cause"] = {
        both: float(n) for both, n in stats.preemptions_by_total.items()
    }
    values["adaptive_changes"] = {way: float(n) for way, n in stats.adaptive_changes_total.items()}
    values["request_refused"] = {code: float(n) for code, n in stats.refused_total.items()}
    return values


def _usage(stats: EngineStats) -> float:
    """The share of blocks held in the fullest KV group: the one that runs out first."""
    groups = stats.group_blocks or {"": stats.blocks_total}
    held = stats.group_held or {"": stats.blocks_held}
    return max((held.get(name, 0) / total for name, total in groups.items() if total), default=0.0)
