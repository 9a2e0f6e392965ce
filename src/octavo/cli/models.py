"""`octavo models`: what kinds of models load, family by family.

Owns: that table, for people, as JSON, and as the page docs/models.md.
Does not know: what a family is (model.families) or how formats are held (model.formats).
"""

from __future__ import annotations

import json
from typing import Any

from octavo.cli.console import table_console, write
from octavo.model.families import FAMILIES
from octavo.model.families.family import Family
from octavo.model.formats import Format, formats, of_family


def models(as_json: bool) -> None:
    if as_json:
        write(json.dumps(facts(), indent=2) + "\n")
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("architecture", "GGUF", "formats", "context", "special"):
        table.add_column(name, overflow="fold")
    for family in FAMILIES:
        table.add_row(
            family.architecture, family.gguf_architecture or "-", _formats(family),
            family.context, family.summary,
        )  # fmt: skip
    console = table_console()
    console.print(table)
    console.print(f"\nGGUF types: {', '.join(_names('gguf'))}", markup=False)
    console.print("octavo check MODEL says how one model will run.", markup=False)


def facts() -> dict[str, Any]:
    """The whole table as plain data."""
    return {
        "families": [
            {
                "architecture": family.architecture,
                "model_type": family.model_type,
                "gguf_architecture": family.gguf_architecture,
                "formats": [f"{f.container}:{f.name}" for f in of_family(family)],
                "context": family.context,
                "summary": family.summary,
            }
            for family in FAMILIES
        ],
        "formats": [
            {
                "container": form.container,
                "name": form.name,
                "held": form.held,
                "exact": form.loses is None,
            }
            for form in formats()
        ],
    }


def page() -> str:
    """The same in Markdown."""
    lines = ["# Models", ""]
    lines += [
        "`octavo models` prints this table; `octavo check` tells how one model will run on this "
        "machine. What is not listed is refused before its weights are read, with the reason and "
        "the nearest that is.",
        "",
        "## Families",
        "",
        "| architecture | in GGUF | formats | context | special |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{family.architecture}` | {_code(family.gguf_architecture)} | {_formats(family)} "
        f"| {family.context} | {family.summary} |"
        for family in FAMILIES
    ]
    lines += [
        "",
        "## Formats",
        "",
        "How the compiled kernels hold each format by themselves (`--dtype auto`); what is lost is "
        "also logged at the start. Products with codes round their activations to int8; with "
        "`--dtype bfloat16` or `--dtype float32` all is held and computed in floats.",
        "",
        "| in | format | held as | loses |",
        "|---|---|---|---|",
    ]
    lines += [_row(form) for form in formats()]
    return "\n".join(lines) + "\n"


def _row(form: Format) -> str:
    return f"| {form.container} | `{form.name}` | {form.held} | {form.loses or 'nothing'} |"


def _code(name: str | None) -> str:
    return f"`{name}`" if name else "-"


def _formats(family: Family) -> str:
    names = [f.name for f in of_family(family) if f.container == "safetensors"]
    gguf = sum(f.container == "gguf" for f in of_family(family))
    return f"safetensors ({', '.join(names)})" + (f", GGUF ({gguf} types)" if gguf else "")


def _names(container: str) -> list[str]:
    return [form.name for form in formats() if form.container == container]
