"""`octavo config show`: every value and where it came from.

Owns: that table, for people and as JSON. Keys are not shown.
Does not know: how values are resolved.
"""

from __future__ import annotations

import json
from typing import Any

from octavo.cli.console import write
from octavo.config import Option, Options, table
from octavo.deploy import with_threads


def show(options: Options, as_json: bool) -> None:
    if options.threads is None:
        options = with_threads(options)
    if as_json:
        values = {
            row.name: {
                "value": _value(row, options),
                "source": options.source(row.name).kind,
                "detail": options.source(row.name).detail,
            }
            for row in table()
        }
        write(json.dumps(values, indent=2) + "\n")
        return
    lines = []
    group = ""
    for row in table():
        if row.group != group:
            lines.append(f"{row.group}:")
            group = row.group
        lines.append(f"  {row.name:<24} {_text(row, options):<24} {options.source(row.name)}")
    write("\n".join(lines) + "\n")


def _value(row: Option, options: Options) -> Any:
    value = getattr(options, row.name)
    if row.secret and value:
        return f"({len(value)} given)"
    return list(value) if isinstance(value, tuple) else value


def _text(row: Option, options: Options) -> str:
    value = _value(row, options)
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else str(value)
