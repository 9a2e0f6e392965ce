"""`octavo bench quick`: a table of what this machine does, and the same as JSON.

Owns: which measurements run, and how they are shown.
Does not know: how anything is measured (bench).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import Any

from octavo.cli.console import Steps, table_console, write
from octavo.config import Options
from octavo.deploy import find_model, threads_for
from octavo.machine import limit_thread_pools

WAITING = (20, 20_000)
REQUESTS = (1, 8)


def quick(options: Options, as_json: bool) -> None:
    threads = threads_for(options)
    limit_thread_pools(threads.count, os.environ)
    with Steps(3) as steps:
        steps.begin("Measuring the scheduler alone")
        costs = _scheduler()
        steps.begin(f"Loading {options.model}")
        find_model(options, steps.progress)
        from octavo.bench import decode
        from octavo.offline.llm_engine import LLMEngine

        begun = time.perf_counter()
        given = {name: getattr(options, name) for name in options.sources if name != "model"}
        engine = LLMEngine(options.model, **given)
        load = time.perf_counter() - begun
        steps.begin("Measuring the model")
        speeds = [decode.measure(engine, requests) for requests in REQUESTS]
    results = {
        "threads": {"count": threads.count, "reason": threads.reason},
        "scheduler": costs,
        "model": options.model,
        "load_s": round(load, 3),
        "decode": [dataclasses.asdict(speed) | {"tpot_ms": speed.tpot_ms} for speed in speeds],
    }
    _show(results, as_json)
    if as_json:
        write(json.dumps(results, indent=2) + "\n")


def _scheduler() -> list[dict[str, Any]]:
    from octavo.bench import scheduler

    costs = [scheduler.measure(waiting) for waiting in WAITING]
    return [
        dataclasses.asdict(cost) | {"steps_per_second": cost.steps_per_second} for cost in costs
    ]


def _show(results: dict[str, Any], as_json: bool) -> None:
    from rich.table import Table

    console = table_console(beside=as_json)
    core = Table("waiting", "running", "step (µs)", "steps/s", title="scheduler alone")
    for row in results["scheduler"]:
        core.add_row(
            f"{row['waiting']:,}",
            f"{row['running']:,}",
            f"{row['step_us']:.0f}",
            f"{row['steps_per_second']:,.0f}",
        )
    model = Table(
        "requests", "prompt", "output", "TTFT (s)", "TPOT (ms)", "decode (tokens/s)",
        title=f"{results['model']}, {results['threads']['count']} threads",
    )  # fmt: skip
    for row in results["decode"]:
        model.add_row(
            str(row["requests"]),
            str(row["prompt_tokens"]),
            str(row["output_tokens"]),
            f"{row['ttft_s']:.2f}",
            f"{row['tpot_ms']:.1f}",
            f"{row['decode_tokens_per_s']:.1f}",
        )
    for table in (core, model):
        console.print(table)
