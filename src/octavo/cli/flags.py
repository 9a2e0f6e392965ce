"""Flags generated from the table of options: a command names what it takes, no more.

Owns: the translation from the table to a signature that typer reads, and what an unknown flag is
told.
Does not know: any single option, or what the commands do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.models import ArgumentInfo

from octavo.config import ConfigError, Option, resolve, table
from octavo.config.kinds import Flag, Names
from octavo.config.resolve import nearest
from octavo.config.vllm_names import refusal

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_CONFIG = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="A TOML or YAML file of options."),
]
_MODEL = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A path, a name on the hub, or a built-in alias."),
]


def with_options(
    *wanted: str, positional: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--config`, the flags of the groups and single options that are `wanted`, and
    (`positional`) the model as an argument.

    The command gets them resolved, as `options`; its other parameters stay as they are.
    """
    rows = [row for row in table() if row.group in wanted or row.name in wanted]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.name != "options"]

        def run(config: str | None = None, **given: Any) -> None:
            flags = {row.name: given.pop(row.name, None) for row in rows}
            flags = {name: value for name, value in flags.items() if value not in (None, [])}
            argument = given.pop("model_argument", None)
            if argument is not None:
                if flags.get("model") not in (None, argument):
                    raise ConfigError(
                        f"two models are given: {argument} and --model {flags['model']}",
                        "give one",
                        "model",
                    )
                flags["model"] = argument
            command(**given, options=resolve(flags, config=config))

        parameters = [
            *(item.replace(kind=_KEYWORD) for item in own if _is_argument(item)),
            *([inspect.Parameter("model_argument", _KEYWORD, default=None, annotation=_MODEL)]
              if positional else []),
            *(item.replace(kind=_KEYWORD) for item in own if not _is_argument(item)),
            *(_parameter(row) for row in rows),
            inspect.Parameter("config", _KEYWORD, default=None, annotation=_CONFIG),
        ]  # fmt: skip
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _is_argument(item: inspect.Parameter) -> bool:
    """The command's own arguments stand before the model."""
    notes = getattr(item.annotation, "__metadata__", ())
    return any(isinstance(note, ArgumentInfo) for note in notes)


def flags_of(row: Option) -> list[str]:
    """All spellings of an option on the command line, the main one first."""
    names = ["--" + name.replace("_", "-") for name in (row.name, *row.aliases)]
    if isinstance(row.kind, Flag):
        return [f"{name}/--no-{name.removeprefix('--')}" for name in names]
    return names


def _parameter(row: Option) -> inspect.Parameter:
    kind: Any = str
    if isinstance(row.kind, Flag):
        kind = bool
    elif isinstance(row.kind, Names):
        kind = list[str]
    option = typer.Option(
        *flags_of(row),
        help=row.help + _default(row),
        metavar=row.kind.metavar or None,
        rich_help_panel=row.group,
        show_default=False,
    )
    return inspect.Parameter(
        row.name, _KEYWORD, default=None, annotation=Annotated[kind | None, option]
    )


def _default(row: Option) -> str:
    if row.default is None or row.default == ():
        return ""
    shown = str(row.default).lower() if isinstance(row.default, bool) else str(row.default)
    return f" Default: {shown}."


def unknown_flag(flag: str) -> ConfigError:
    """What to say of a flag that no command has: vLLM's by its name, any other with the nearest."""
    refused = refusal(flag)
    if refused:
        return ConfigError(*refused, flag)
    known = {name for row in table() for name in "/".join(flags_of(row)).split("/")}
    near = nearest(flag, known | {"--config", "--help"})
    return ConfigError(f"unknown option {flag}", f"did you mean {near}?" if near else "", flag)
