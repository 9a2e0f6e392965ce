"""Writes the references that are made from the code: cli.md, metrics.md and models.md in docs/.

Run by `make docs`. A test compares the files with what this would write, so that they never drift.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from octavo.cli import models
from octavo.cli.app import build
from octavo.cli.flags import flags_of
from octavo.config import table
from octavo.server.metrics import metric_reference

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTE = "<!-- Written by `make docs`; edit the code instead. -->"


def pages() -> dict[str, str]:
    """File name in docs/ -> its text."""
    return {"cli.md": cli_page(), "metrics.md": metrics_page(), "models.md": models_page()}


def cli_page() -> str:
    application: Any = typer.main.get_command(build())
    lines = [NOTE, "", "# The command line", ""]
    lines += ["`octavo COMMAND`, or `python -m octavo COMMAND`.", ""]
    lines += ["| command | what it does |", "|---|---|"]
    commands = list(_commands(application, "octavo"))
    lines += [f"| [`{name}`](#{_anchor(name)}) | {_help(command)} |" for name, command in commands]
    for name, command in commands:
        lines += ["", f"## {name}", "", _help(command), "", *_own_parameters(command)]
    lines += ["", "# Options", ""]
    lines += [
        "Every option can be given as a flag, as an environment variable and in a file "
        "(`--config FILE` or `OCTAVO_CONFIG`; TOML or YAML; the name is the key). "
        "A flag wins over the environment, the environment over the file. "
        "`octavo config show` tells every value and where it came from.",
    ]
    group = ""
    for row in table():
        if row.group != group:
            group = row.group
            lines += ["", f"## {group} options", ""]
            lines += ["| flag | environment | default | |", "|---|---|---|---|"]
        flags = ", ".join(f"`{flag}`" for flag in flags_of(row))
        default = "" if row.default in (None, ()) else f"`{str(row.default).lower()}`"
        lines.append(f"| {flags} | `{row.env}` | {default} | {row.help} |")
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    lines = [NOTE, "", "# Metrics", ""]
    lines += [
        "Served at `/metrics` in the Prometheus text format. Times are in seconds. "
        "Names are vLLM's where the meaning is the same, with the prefix `octavo:`.",
        "",
        "| name | type | |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {kind} | {help} |" for name, kind, help in metric_reference()]
    return "\n".join(lines) + "\n"


def models_page() -> str:
    return f"{NOTE}\n\n{models.page()}"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for child_name, child in getattr(command, "commands", {}).items():
        if getattr(child, "commands", None):
            yield from _commands(child, f"{name} {child_name}")
        else:
            yield f"{name} {child_name}", child


def _own_parameters(command: Any) -> list[str]:
    """The parameters that are not options of the table; which groups of those it takes."""
    rows = {row.name: row for row in table()}
    lines = []
    groups: dict[str, list[str]] = {}
    for parameter in command.params:
        row = rows.get(parameter.name)
        if row is not None:
            groups.setdefault(row.group, []).append(row.flag)
            continue
        if "--help" in parameter.opts:
            continue
        shown = " / ".join(parameter.opts)
        if parameter.param_type_name == "argument":
            shown = parameter.metavar or f"{parameter.name.upper()}"
        lines.append(f"- `{shown}`: {parameter.help}")
    for group, flags in groups.items():
        whole = len(flags) == sum(row.group == group for row in table())
        if whole:
            lines.append(f"- the [{group} options](#{_anchor(f'{group} options')})")
        else:
            lines.append("- " + ", ".join(f"`{flag}`" for flag in flags))
    return lines


def _help(command: Any) -> str:
    return str(command.help or "").strip().splitlines()[0]


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}: {text.count(chr(10))} lines")
