"""`octavo bench ...`: the measuring commands and their flags.

Owns: names, help and parameters.
Does not know: what the commands do (bench_quick, bench_roofline, bench_perplexity, bench_serve).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from octavo.cli.flags import with_options
from octavo.config import Options
from octavo.config.options import ENGINE, MEMORY, MODEL

Json = Annotated[bool, typer.Option("--json", help="Print JSON; tables go to standard error.")]


@with_options(MODEL, ENGINE, MEMORY, "log_level")
def quick(options: Options, json: Json = False) -> None:
    """Measure the scheduler and a model in this process."""
    from octavo.cli.bench_quick import quick

    quick(options, json)


@with_options(MODEL, ENGINE, MEMORY, "log_level")
def roofline(
    options: Options,
    batch: Annotated[
        list[int] | None, typer.Option(help="Sequences that decode together; may be repeated.")
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens of each prompt.", min=1)] = 128,
    steps: Annotated[int, typer.Option(help="Decode steps that are measured.", min=1)] = 16,
    json: Json = False,
) -> None:
    """Measure each op's share of a step and its fraction of the machine's ceilings."""
    from octavo.cli.bench_roofline import Asked, roofline

    roofline(options, Asked(tuple(batch or (1, 8)), context, steps, json))


@with_options(MODEL, "backend", "threads", "log_level")
def perplexity(
    options: Options,
    text: Annotated[
        str, typer.Option("--text", metavar="FILE", help="The text that is predicted.")
    ],
    tokens: Annotated[int, typer.Option(help="Tokens that are scored.", min=1)] = 20_000,
    window: Annotated[
        int, typer.Option(help="Tokens that are seen together; each window begins anew.", min=2)
    ] = 1024,
    json: Json = False,
) -> None:
    """Measure what rounded weights, activations, keys and values cost in perplexity."""
    from octavo.cli.bench_perplexity import Asked, perplexity

    perplexity(options, Asked(text, tokens, window, json))


@with_options("api_key", "log_level", positional=False)
def serve(
    options: Options,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The server that is measured.")],
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="URL", help="A second server: both run in turns, with ratios."
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", metavar="FILE", help='JSON: {name: [{"prompt": ..., "max_tokens": ...}]}.'
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A workload of the file; may be repeated.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="CSV or JSONL of times and lengths."),
    ] = None,
    scale: Annotated[
        float, typer.Option(help="Stretch of a trace's times; 0.5 is twice as fast.", min=0)
    ] = 1.0,
    requests: Annotated[
        int | None,
        typer.Option(help="Random requests (32), or the first so many of a trace.", min=1),
    ] = None,
    input_tokens: Annotated[
        int, typer.Option(help="About so many tokens in a random prompt.", min=1)
    ] = 128,
    output_tokens: Annotated[int, typer.Option(help="Tokens of a random request.", min=1)] = 64,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second, as a Poisson process.", min=1e-6)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="The most requests under way at once.", min=1)
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each workload; medians.", min=1)] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Of prompts and arrivals; a new one each time if left out.")
    ] = None,
    salt: Annotated[
        bool,
        typer.Option(help="Put words of its own before each run's prompts: a cold prefix cache."),
    ] = True,
    model_name: Annotated[
        str | None,
        typer.Option("--model", help="The model's name; if left out, the first that is listed."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Use the chat route.")] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds that a request may take.", min=0.001)
    ] = 600.0,
    max_failures: Annotated[
        float,
        typer.Option(help="The share of failed requests above which to exit with 1.", min=0, max=1),
    ] = 0.01,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Write JSON with every request, as it goes."),
    ] = None,
    json: Json = False,
) -> None:
    """Load a server over HTTP and report latencies and throughput."""
    from octavo.cli.bench_serve import Asked, bench_serve

    asked = Asked(
        url=url, against=against, workload=workload, only=tuple(only or ()), trace=trace,
        scale=scale, requests=requests, input_tokens=input_tokens, output_tokens=output_tokens,
        rate=rate, concurrency=concurrency, repeats=repeats, seed=seed, salt=salt, model=model_name,
        chat=chat, timeout=timeout, max_failures=max_failures, output=output, json=json,
    )  # fmt: skip
    bench_serve(options, asked)


def _bench(context: typer.Context) -> None:
    """Measure this machine, a model, a server."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build_bench(mode: Any) -> typer.Typer:
    """The sub-application; without a command it prints its help."""
    app = typer.Typer(rich_markup_mode=mode, help=_bench.__doc__, invoke_without_command=True)
    app.callback()(_bench)
    for command in (quick, roofline, perplexity, serve):
        app.command()(command)
    return app
