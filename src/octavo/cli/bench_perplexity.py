"""`octavo bench perplexity`: what quantised paths cost in prediction, as a table and as JSON.

Owns: which configurations are compared, and how they are shown.
Does not know: how perplexity is measured (bench.perplexity).
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.console import Steps, table_console, write
from octavo.cli.errors import USAGE, CliError
from octavo.config import Options
from octavo.deploy import find_model, threads_for
from octavo.machine import limit_thread_pools

if TYPE_CHECKING:
    from octavo.offline.llm_engine import LLMEngine

REFERENCE = "--dtype float32"
AS_IT_IS: dict[str, tuple[str, dict[str, str]]] = {
    REFERENCE: (REFERENCE, {"dtype": "float32"}),
    "as it is": (REFERENCE, {}),
    "--kv-cache-dtype int8": ("as it is", {"kv_cache_dtype": "int8"}),
}
"""Configuration -> what it is compared with beside the reference, and its options."""
PLAIN: dict[str, tuple[str, dict[str, str]]] = {
    "bfloat16 weights": (REFERENCE, {}),
    "--quantize int8": ("bfloat16 weights", {"quantize": "int8"}),
    "--quantize int4": ("bfloat16 weights", {"quantize": "int4"}),
}
"""The same of plain weights: the model's own, or a quantised one's in bfloat16."""


@dataclass(frozen=True, slots=True)
class Asked:
    text: str
    tokens: int
    window: int
    json: bool


@dataclass(frozen=True, slots=True)
class _Result:
    name: str
    tokens: int
    perplexity: float
    ratio: float
    against: str
    against_ratio: float
    seconds: float


def perplexity(options: Options, asked: Asked) -> None:
    try:
        text = Path(asked.text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"--text {asked.text}: cannot be read: {error}", code=USAGE) from None
    limit_thread_pools(threads_for(options).count, os.environ)
    ids: list[int] = []
    results: list[_Result] = []
    with Steps(1 + len(AS_IT_IS) + len(PLAIN)) as steps, tempfile.TemporaryDirectory() as folder:
        steps.begin(f"Finding {options.model}")
        model = find_model(options, steps.progress)
        quantised = model.quantization != "none"
        for name, path, against, given in _configurations(model.path, quantised, Path(folder)):
            steps.begin(f"Measuring {name}")
            engine = _engine(options, path, asked.window, given)
            ids = ids or list(engine.tokenizer.encode(text))
            results.append(_measure(engine, name, against, ids, asked, results))
    _show(results, asked.json)
    if asked.json:
        rows = [dataclasses.asdict(result) for result in results]
        write(json.dumps({"model": options.model, "window": asked.window, "rows": rows}) + "\n")


def _configurations(
    path: str, quantised: bool, folder: Path
) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Name, path of the model, what to compare with, options."""
    for name, (against, given) in AS_IT_IS.items():
        yield name, path, against, given
    if quantised:
        from octavo.bench.bfloat import write_bfloat

        write_bfloat(path, folder / "bfloat16.gguf")
        path = str(folder / "bfloat16.gguf")
    for name, (against, given) in PLAIN.items():
        yield name, path, against, given


def _engine(options: Options, path: str, window: int, given: dict[str, str]) -> LLMEngine:
    from octavo.bench.perplexity import options_for
    from octavo.offline.llm_engine import LLMEngine

    kept = {key: getattr(options, key) for key in options.sources if key != "model"}
    return LLMEngine(path, **{**kept, **options_for(window), **given})


def _measure(
    engine: LLMEngine, name: str, against: str, ids: list[int], asked: Asked, before: list[_Result]
) -> _Result:
    from octavo.bench.perplexity import measure

    found = measure(engine, ids, asked.tokens, asked.window)
    known = {result.name: result.perplexity for result in before} | {name: found.value}
    return _Result(
        name,
        found.tokens,
        found.value,
        found.value / known[REFERENCE],
        against,
        found.value / known[against],
        found.seconds,
    )


def _show(results: list[_Result], as_json: bool) -> None:
    from rich.table import Table

    table = Table(title=f"perplexity of {results[0].tokens:,} tokens")
    table.add_column("configuration")
    for column in ("perplexity", f"of {REFERENCE}", "tokens/s"):
        table.add_column(column, justify="right")
    table.add_column("of its own reference")
    for result in results:
        table.add_row(
            result.name,
            f"{result.perplexity:.4f}",
            f"{result.ratio:.4f}",
            f"{result.tokens / result.seconds:,.0f}",
            f"{result.against_ratio:.4f} of {result.against}",
        )
    table_console(beside=as_json).print(table)
