"""`octavo bench serve`: load a server, show what came of it, and say whether it held.

Owns: what is sent for which flags, the tables, the file of results, the exit code.
Does not know: how requests are sent or measured (bench.load).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench.load.client import Api
from octavo.bench.load.figures import LATENCIES, Figures, failed_share
from octavo.bench.load.http import Target
from octavo.bench.load.made import at_rate, random_workload, trace_workload
from octavo.bench.load.session import Plan, Session, Unreachable, measure
from octavo.bench.load.workload import Workload, WorkloadError, read_workloads
from octavo.cli.console import make_console, table_console, write
from octavo.cli.errors import FAILURE, INTERRUPTED, USAGE, CliError
from octavo.config import Options

if TYPE_CHECKING:
    from rich.table import Table

RANDOM_REQUESTS = 32
SEED_BITS = 31


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags, as they are."""

    url: str
    against: str | None = None
    workload: str | None = None
    only: tuple[str, ...] = ()
    trace: str | None = None
    scale: float = 1.0
    requests: int | None = None
    input_tokens: int = 128
    output_tokens: int = 64
    rate: float | None = None
    concurrency: int | None = None
    repeats: int = 1
    seed: int | None = None
    salt: bool = True
    model: str | None = None
    chat: bool = False
    timeout: float = 600.0
    max_failures: float = 0.01
    output: str | None = None
    json: bool = False


def bench_serve(options: Options, asked: Asked) -> None:
    seed = secrets.randbits(SEED_BITS) if asked.seed is None else asked.seed
    try:
        workloads = choose(asked, seed)
        servers = {"server": _api(asked.url, options, asked)}
        if asked.against is not None:
            servers["against"] = _api(asked.against, options, asked)
    except (ValueError, WorkloadError) as error:
        raise CliError(str(error), code=USAGE) from None
    plan = Plan(
        servers, workloads, asked.repeats, asked.concurrency, seed, asked.salt
    )  # the same seed for both: they are sent the same
    settings = dataclasses.asdict(asked) | {"seed": seed}
    console = make_console()

    def done(session: Session) -> None:
        console.print(_line(session.runs[-1]), markup=False)
        if asked.output is not None:
            _save(Path(asked.output), settings, session)

    try:
        session = _run(measure(plan, done))
    except Unreachable as error:
        raise CliError(
            str(error), "is it running, and is the URL right? octavo serve starts one"
        ) from None
    if session.runs:
        show(session, table_console(beside=asked.json).print)
    for figures in session.runs:
        for warning in figures["warnings"]:
            console.print(
                f"warning: {figures['workload']}: {warning}", markup=False, style="yellow"
            )
    if asked.json:
        write(json.dumps({"settings": settings, **session.as_json()}, indent=2) + "\n")
    _exit(session, asked)


def choose(asked: Asked, seed: int) -> list[Workload]:
    """What the flags ask to send. Raises WorkloadError, ValueError and OSError."""
    if asked.workload is not None and asked.trace is not None:
        raise ValueError("--workload and --trace are two things to send: give one")
    if asked.only and asked.workload is None:
        raise ValueError("--only names workloads of a file: give --workload too")
    if asked.trace is not None:
        if asked.rate is not None:
            raise ValueError("a trace has times of its own: give --scale instead of --rate")
        return [trace_workload(asked.trace, asked.scale, asked.requests, seed)]
    if asked.workload is not None:
        workloads = read_workloads(asked.workload, asked.only)
    else:
        count = asked.requests or RANDOM_REQUESTS
        workloads = [random_workload(count, asked.input_tokens, asked.output_tokens, seed)]
    if asked.rate is None:
        return workloads
    return [at_rate(workload, asked.rate, seed) for workload in workloads]


def _api(url: str, options: Options, asked: Asked) -> Api:
    key = options.api_key[0] if options.api_key else None
    return Api(Target.parse(url), asked.model, key, asked.chat, asked.timeout)


def _run(work: Coroutine[Any, Any, Session]) -> Session:
    """Ctrl-C cancels `work`, which then returns what it has."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def _save(path: Path, settings: dict[str, Any], session: Session) -> None:
    """Whole at every moment: written beside, then moved."""
    beside = path.with_name(path.name + ".part")
    text = json.dumps({"settings": settings, **session.as_json(details=True)}, indent=1)
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def _exit(session: Session, asked: Asked) -> None:
    if session.interrupted:
        kept = f"; saved in {asked.output}" if asked.output is not None and session.runs else ""
        raise CliError(f"interrupted: these are partial results{kept}", code=INTERRUPTED)
    share = failed_share(session.runs)
    if share > asked.max_failures:
        failed = sum(figures["failed"] for figures in session.runs)
        raise CliError(
            f"{failed} requests failed: {share:.1%} of all, above --max-failures "
            f"{asked.max_failures:g}",
            code=FAILURE,
        )


def show(session: Session, print_: Callable[[Any], None]) -> None:
    """Medians over repeats: rates, latencies, failures, and the two servers' ratios."""
    found = session.medians()
    rows = [
        (workload, server, figures)
        for workload, servers in found.items()
        for server, figures in servers.items()
    ]
    print_(_rates(rows))
    print_(_latencies(rows))
    reasons = [
        (workload, server, reason, count)
        for workload, server, figures in rows
        for reason, count in figures["failures"].items()
    ]
    if reasons:
        table = _table("failed requests, in no figure above", "workload", "server", "count", "why")
        for workload, server, reason, count in reasons:
            table.add_row(workload, server, str(count), _plain(reason))
        print_(table)
    ratios = session.ratios()
    if ratios:
        print_(_ratios(ratios))


def _rates(rows: list[tuple[str, str, Figures]]) -> Table:
    table = _table(
        "throughput", "workload", "server", "ok", "failed", "time (s)", "input (tokens)",
        "output (tokens)", "output (tokens/s)", "all (tokens/s)", "requests/s", "tokens/chunk",
        "client (% CPU)",
    )  # fmt: skip
    for workload, server, one in rows:
        chunk = one["tokens_per_chunk"]
        table.add_row(
            workload,
            server,
            f"{one['succeeded']:,}",
            f"{one['failed']:,}",
            f"{one['seconds']:.2f}",
            f"{one['prompt_tokens']:,.0f}",
            f"{one['output_tokens']:,.0f}",
            f"{one['output_tokens_per_s']:,.1f}",
            f"{one['total_tokens_per_s']:,.1f}",
            f"{one['requests_per_s']:.2f}",
            "-" if chunk is None else f"{chunk:.2f}",
            f"{100 * one['client_cpu']:.0f}",
        )
    return table


def _latencies(rows: list[tuple[str, str, Figures]]) -> Table:
    keys = ("mean", "p50", "p90", "p95", "p99", "max")
    table = _table("latency (ms)", "workload", "server", "", *keys)
    names = {
        "ttft_ms": "TTFT",
        "tpot_ms": "TPOT",
        "itl_ms": "ITL, by chunk",
        "e2e_ms": "end to end",
    }
    for workload, server, one in rows:
        for name in LATENCIES:
            spread = one[name]
            values = ["-"] * len(keys) if spread is None else [f"{spread[k]:,.1f}" for k in keys]
            table.add_row(workload, server, names[name], *values)
    return table


def _ratios(ratios: dict[str, dict[str, float | None]]) -> Table:
    names = {
        "output_tokens_per_s": "output tokens/s", "requests_per_s": "requests/s",
        "ttft_ms": "TTFT p50", "tpot_ms": "TPOT p50", "itl_ms": "ITL p50", "e2e_ms": "whole p50",
    }  # fmt: skip
    table = _table("server over against", "workload", *names.values())
    for workload, found in ratios.items():
        shown = [found[name] for name in names]
        table.add_row(workload, *("-" if one is None else f"{one:.2f}" for one in shown))
    return table


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        left = column in ("workload", "server", "why", "")
        table.add_column(column, justify="left" if left else "right")
    return table


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _line(figures: Figures) -> str:
    """One run, as it ends."""
    ttft = figures["ttft_ms"]
    first = "" if ttft is None else f", TTFT {ttft['p50']:,.0f} ms"
    failed = f", {figures['failed']} failed" if figures["failed"] else ""
    return (
        f"{figures['workload']} {figures['repeat'] + 1}, {figures['server']}: "
        f"{figures['output_tokens_per_s']:,.1f} tokens/s{first}{failed}"
    )
