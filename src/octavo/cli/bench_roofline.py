"""`octavo bench roofline`: where a step's time goes, as tables and as JSON.

Owns: loading the model under a clock, and the tables.
Does not know: how anything is measured (bench).
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.cli.console import Steps, table_console, write
from octavo.cli.errors import USAGE, CliError
from octavo.config import Options
from octavo.deploy import find_model, prepare, threads_for
from octavo.machine import limit_thread_pools

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.bench.ceilings import Ceilings, Meter
    from octavo.bench.roofline import Phase

READ_SHARE = 8
"""One part in so many of the memory that is free is read from at the most."""


@dataclass(frozen=True, slots=True)
class Asked:
    batches: tuple[int, ...]
    context: int
    steps: int
    json: bool


def roofline(options: Options, asked: Asked) -> None:
    if min(asked.batches) < 1:
        raise CliError(f"--batch must be 1 or more, not {min(asked.batches)}", code=USAGE)
    limit_thread_pools(threads_for(options).count, os.environ)
    with Steps(2) as steps:
        meter = _meter(options, steps)
        steps.begin(f"Loading {options.model}")
        find_model(options, steps.progress)
        phases, facts = _measure(options, asked, meter, steps)
    console = table_console(beside=asked.json)
    for phase in phases:
        console.print(f"\n{_title(phase, facts)}", markup=False)
        console.print(_ceiling_line(phase.ceilings), markup=False)
        console.print(_table(phase))
    if asked.json:
        results = {
            **facts,
            "phases": [dataclasses.asdict(phase) for phase in phases],
        }
        write(json.dumps(results, indent=2) + "\n")


def _meter(options: Options, steps: Steps) -> Meter | None:
    from octavo.bench.ceilings import READ_BYTES, Meter
    from octavo.machine import inspect
    from octavo.ops.native import native_reason

    if native_reason():
        steps.warn(f"no ceilings, and so no fractions: {native_reason()}")
        return None
    size = min(READ_BYTES, max(1 << 24, inspect().memory // READ_SHARE))
    return Meter(threads_for(options).count, read_bytes=size)


def _measure(
    options: Options, asked: Asked, meter: Meter | None, steps: Steps
) -> tuple[list[Phase], dict[str, Any]]:
    import msgspec

    from octavo.bench.roofline import SETTLING, Roofline, blocks_needed
    from octavo.bench.timed_ops import TimedOps
    from octavo.model.registry import inspect as inspect_model
    from octavo.model.runner import load

    config = prepare(options).engine
    longest = inspect_model(config.model).max_position
    length = asked.context + 2 * (SETTLING + asked.steps) + 1
    if length > longest:
        raise CliError(
            f"--context {asked.context} and --steps {asked.steps} need {length} tokens; the model "
            f"is made for {longest}",
            code=USAGE,
        )
    blocks = blocks_needed(max(asked.batches), asked.context, asked.steps, config.block_size)
    config = msgspec.structs.replace(
        config, num_blocks=blocks, pools=(), max_model_len=max(length, config.max_model_len)
    )
    wrapped: list[TimedOps] = []

    def wrap(ops: Any) -> Any:
        wrapped.append(TimedOps(ops))
        return wrapped[-1]

    loaded = load(config, wrap)
    loaded.executor.warm_up()
    driver = Roofline(
        loaded.executor,
        wrapped[0],
        vocab=loaded.info.vocab_size,
        block_size=config.block_size,
        groups=loaded.executor.groups,
    )
    steps.begin(f"Measuring steps of {', '.join(map(str, asked.batches))} sequences")
    phases = [
        phase
        for batch in asked.batches
        for phase in driver.measure(
            batch, asked.context, asked.steps, None if meter is None else meter.sample
        )
    ]
    facts = {"model": options.model, "threads": config.threads, **loaded.notes}
    return phases, facts


def _ceiling_line(ceilings: Ceilings | None) -> str:
    if ceilings is None:
        return "ceilings: not measured"
    rates = ", ".join(
        f"{kind} {rate / 1e9:,.0f} GOP/s ({ceilings.paths[kind]})"
        for kind, rate in ceilings.operations_per_s.items()
    )
    return (
        f"ceilings, {ceilings.isa}, {ceilings.threads} threads: "
        f"read {ceilings.read_bytes_per_s / 1e9:.1f} GB/s, {rates}"
    )


def _title(phase: Phase, facts: dict[str, Any]) -> str:
    return (
        f"{phase.name}: {facts['model']}, {facts['backend']}, {facts['threads']} threads, "
        f"batch {phase.batch}, context {phase.context}: {1000 * phase.served:,.2f} ms, "
        f"{phase.tokens / phase.served:,.1f} tokens/s"
    )


def _table(phase: Phase) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("op")
    for name in ("calls", "time (ms)", "share (%)", "GB/s", "GOP/s"):
        table.add_column(name, justify="right")
    table.add_column("limit")
    table.add_column("of the ceiling (%)", justify="right")
    for op in phase.ops:
        table.add_row(
            op.label,
            str(op.calls or ""),
            f"{1000 * op.seconds:.3f}",
            f"{100 * op.share:.1f}",
            _rate(op.bytes, op.seconds),
            _rate(op.operations, op.seconds),
            op.limit or "",
            "" if op.fraction is None else f"{100 * op.fraction:.1f}",
        )
    table.add_section()
    name = "step" if phase.name == "decode" else "all steps"
    for label, seconds, fraction in (
        (f"{name}, op by op", phase.seconds, phase.fraction),
        (f"{name}, as served", phase.served, phase.served_fraction),
    ):
        whole = "" if fraction is None else f"{100 * fraction:.1f}"
        share = f"{100 * seconds / phase.seconds:.1f}"
        table.add_row(label, "", f"{1000 * seconds:.3f}", share, "", "", "", whole)
    return table


def _rate(amount: float, seconds: float) -> str:
    return f"{amount / seconds / 1e9:,.1f}" if amount and seconds else ""
