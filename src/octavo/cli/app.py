"""The commands and their flags; each command's work lies in a module of its own.

Owns: names, help and parameters. Nothing heavy is imported before a command runs.
Does not know: what the commands do.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from octavo.cli.bench import build_bench
from octavo.cli.flags import with_options
from octavo.config import Options
from octavo.config.options import BATCH, ENGINE, LOGGING, MEMORY, MODEL, SERVER

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MaxTokens = Annotated[int, typer.Option(help="The most tokens to generate.", min=1)]
Temperature = Annotated[
    float | None, typer.Option(help="Sampling temperature; 0 is greedy.", min=0, max=100)
]
Seed = Annotated[int | None, typer.Option(help="Seed; the same seed gives the same text.", min=0)]
System = Annotated[str | None, typer.Option(help="A system message.")]


@with_options(MODEL, SERVER, ENGINE, MEMORY, BATCH, LOGGING)
def serve(options: Options) -> None:
    """Serve a model over HTTP (OpenAI's API)."""
    from octavo.cli.serve import serve

    serve(options)


@with_options(MODEL, ENGINE, MEMORY, "log_level", positional=False)
def run(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads standard input.")],
    options: Options,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = None,
    seed: Seed = None,
    system: System = None,
    raw: Annotated[bool, typer.Option("--raw", help="Complete the text, without a chat.")] = False,
) -> None:
    """Answer one prompt and exit."""
    from octavo.cli.run import Ask, run

    run(options, prompt, Ask(max_tokens, temperature, seed, system), raw)


@with_options(MODEL, ENGINE, MEMORY, "api_key", "log_level")
def chat(
    options: Options,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Talk to a server instead of loading a model."),
    ] = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = None,
    seed: Seed = None,
    system: System = None,
) -> None:
    """Chat in the terminal."""
    from octavo.cli.chat import chat
    from octavo.cli.run import Ask

    chat(options, url, Ask(max_tokens, temperature, seed, system))


@with_options("model", "cache_dir", "offline", "log_level")
def pull(options: Options) -> None:
    """Fetch a model into the cache and print its path."""
    from octavo.cli.pull import pull

    pull(options)


def models(json: Json = False) -> None:
    """Print the kinds of models that load: architectures, formats, contexts."""
    from octavo.cli.models import models

    models(json)


@with_options(MODEL, ENGINE, MEMORY, "log_level")
def check(options: Options, json: Json = False) -> None:
    """Explain whether and how a model will run on this machine."""
    from octavo.cli.check import check

    check(options, json)


@with_options(MODEL, ENGINE, MEMORY, "batch_max_rows", "batch_max_in_flight", "log_level")
def batch_run(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Requests, one a line, as /v1/batches takes them.")
    ],
    options: Options,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="OUT", help="Where answers go; unset: FILE with .out before .jsonl."
        ),
    ] = None,
) -> None:
    """Run a file of requests; begun again after an interruption, it goes on."""
    from octavo.cli.batch import run

    run(options, file, output)


@with_options(MODEL, SERVER, ENGINE, MEMORY, BATCH, LOGGING)
def show(options: Options, json: Json = False) -> None:
    """Show every value and where it came from."""
    from octavo.cli.config_show import show

    show(options, json)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"octavo {version('octavo')}")
        except PackageNotFoundError:
            typer.echo("octavo (a source tree that is not installed)")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """An LLM serving engine: paged KV cache, continuous batching, OpenAI's API."""


def _batch() -> None:
    """Run files of requests without a server."""


def _config() -> None:
    """Look at the configuration."""


def build(rich_help: bool = True) -> Any:
    """The application: a callable that takes `args` and more. `rich_help` sets help in
    boxes by group; the short list of commands does without, because loading that takes 0.1 s."""
    mode: Literal["rich"] | None = "rich" if rich_help else None
    app = typer.Typer(rich_markup_mode=mode, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)
    for command in (serve, run, chat, pull, models, check):
        app.command()(command)
    batch = typer.Typer(help="Run files of requests without a server.", rich_markup_mode=mode)
    batch.callback()(_batch)
    batch.command(name="run")(batch_run)
    app.add_typer(batch, name="batch")
    app.add_typer(build_bench(mode), name="bench")
    config = typer.Typer(help="Look at the configuration.")
    config.callback()(_config)
    config.command()(show)
    app.add_typer(config, name="config")
    return app
