"""The page that `octavo check` prints for people.

Owns: its lines, from the facts that `check --json` prints.
Does not know: where the facts come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo.core.memory import Line, show_bytes, show_ledger

_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "vectors": "norms, biases"}
_SAMPLE = 300
"""The most characters shown of the sample conversation."""


def page(name: str, facts: dict[str, Any]) -> list[str]:
    """Lines for a model that is supported; what failed, if anything did, is not told here."""
    model = facts["model"]
    verdict = "and runs on this machine" if facts["runs"] else "but will not run as asked"
    return [
        f"{name}: supported, {verdict}",
        "",
        *_section("model", _model(model, facts["family"])),
        *_section("weights", _weights(facts)),
        *_section("context", _context(facts)),
        *(_section("memory", _memory(facts)) if facts["runs"] else []),
        *_section("text", _text(facts["text"])),
        *_section("note", facts["warnings"]),
        *_section("run it", facts.get("commands", [])),
    ]


def _section(title: str, lines: Any) -> Iterator[str]:
    for index, line in enumerate(lines):
        yield f"{title if not index else '':<9}{line}".rstrip()


def _model(model: dict[str, Any], family: str) -> Iterator[str]:
    yield f"{model['architecture']}, {_count(model['parameters'])} parameters"
    if family:
        yield family
    yield (
        f"{model['layers']} layers of {model['hidden_size']:,}, {model['heads']} heads "
        f"({model['kv_heads']} for keys and values) of {model['head_dim']}, "
        f"vocabulary {model['vocab_size']:,}"
    )
    yield f"{model['format']}, {model['quantization']}: {model['path']}"


def _weights(facts: dict[str, Any]) -> Iterator[str]:
    weights = facts["weights"]
    yield (
        f"{show_bytes(weights['file_bytes'])} on disk, {show_bytes(weights['packed_bytes'])} "
        f"packed for the {facts['backend']} backend"
    )
    for row in weights["held"]:
        if row["weights"]:
            source = row["source"].rpartition(":")[2]
            lost = f"; {row['loses']}" if row["loses"] else ", exactly"
            yield (
                f"{_NAMES.get(source, source):<14}{_count(row['weights']):>12}"
                f"  {show_bytes(row['bytes']):>11}  {row['held']}{lost}"
            )


def _context(facts: dict[str, Any]) -> Iterator[str]:
    model, kv = facts["model"], facts["kv"]
    rope = f", {model['rope']}" if model["rope"] else ""
    yield f"the model's own {model['max_position']:,} tokens{rope}"
    yield f"longest context that fits: {facts['largest_context']:,} tokens"
    yield f"{show_bytes(kv['bytes_per_token'])} of keys and values a token ({kv['dtype']})"


def _memory(facts: dict[str, Any]) -> Iterator[str]:
    yield f"{show_bytes(facts['memory_bytes'])} ({facts['memory_reason']})"
    yield from show_ledger([Line(**line) for line in facts["ledger"]], facts["budget_bytes"])
    chats = facts["chats"]
    yield f"holds {chats['count']:,} chats of {chats['tokens']:,} tokens"
    yield f"{facts['threads']['count']} threads ({facts['threads']['reason']})"


def _text(text: dict[str, Any]) -> Iterator[str]:
    if text["error"] is not None:
        yield f"no tokenizer: {text['error']}"
        return
    yield f"{text['kind']}; {text['tokens']:,} tokens, {text['special_tokens']:,} of them special"
    bos = _tokens(text["bos"]) or "none"
    yield f"begins with {bos}{'' if text['adds_bos'] else ' (not added to plain prompts)'}"
    yield f"ends with {_tokens(text['ends']) or 'nothing that is known'}"
    if text["template"] == "ok":
        sample = text["sample"]
        cut = sample if len(sample) <= _SAMPLE else f"{sample[:_SAMPLE]} ..."
        yield "chat template renders, e.g.:"
        for line in cut.splitlines():
            yield f"  | {line}"
    elif text["template"] == "none":
        yield "no chat template"
    else:
        yield f"chat template: {text['template']}"


def _tokens(tokens: list[dict[str, Any]]) -> str:
    shown = [f"{token['text']!r} ({token['id']})" for token in tokens[:8]]
    more = f" and {len(tokens) - 8} more" if len(tokens) > 8 else ""
    return ", ".join(shown) + more


def _count(number: int) -> str:
    for size, word in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= size:
            return f"{number / size:,.1f} {word}"
    return f"{number}"
