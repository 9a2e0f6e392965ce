"""`octavo check`: whether and how a model will run on this machine, in one page.

Owns: gathering the facts: what the model is, how it will be held, its text side, what fits; as JSON
too, with keys that stay.
Does not know: the look of the page (check_page), how models are read or memory is planned (deploy).

Reads headers and configuration only. Exit codes: 0 it runs, 1 it does not, 2 wrong use.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

from octavo.cli.check_page import page
from octavo.cli.console import Steps, write
from octavo.cli.errors import CliError, explain
from octavo.config import Options
from octavo.core.memory import PlanError
from octavo.deploy import Deployment, find_model, largest_context, plan, prepare
from octavo.frontend import load_template, load_tokenizer
from octavo.machine import Machine, inspect
from octavo.model.errors import ModelError
from octavo.model.families import FAMILIES
from octavo.model.formats import holdings
from octavo.model.info import ModelInfo
from octavo.model.sizes import kv_dtype, sized
from octavo.model.tokenizer_files import require_tokenizer
from octavo.ops.select import resolve_backend
from octavo.text.errors import ChatError, TokenizerError
from octavo.text.tokenizer import Tokenizer

CONVERSATION = (
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "What is 2 + 2?"},
)
"""What a chat template is tried with."""


def check(options: Options, as_json: bool) -> None:
    """Prints the report. Raises CliError where the model will not run."""
    machine = inspect()
    facts: dict[str, Any] = {
        "supported": False,
        "fits": None,
        "runs": False,
        "error": None,
        "code": None,
        "hint": [],
        "memory_bytes": machine.memory,
        "memory_reason": machine.memory_reason,
    }
    failure: Exception | None = None
    try:
        with Steps(1, quiet=True) as steps:
            model = find_model(options, steps.progress)
        facts |= {"supported": True, "largest_context": largest_context(options, model, machine)}
        facts |= _model_facts(options, model) | {"family": _family(model)}
        facts |= {"text": _text_facts(options, model)}
        deployment = _deployment(options, model, machine, facts)
        facts |= {"fits": True, "runs": True, **_plan_facts(deployment)}
        facts |= {"commands": _commands(options, has_template=facts["text"]["template"] == "ok")}
    except (ModelError, PlanError, TokenizerError) as error:
        failure = error
        told = explain(error)
        assert told is not None
        code = getattr(error, "code", None) or _codes(error)
        facts |= {"error": told.message, "code": code, "hint": told.hint.splitlines()}
    facts["warnings"] = _warnings(facts)
    if as_json:
        write(json.dumps(facts, indent=2) + "\n")
        if failure is not None:
            told = explain(failure)
            assert told is not None
            raise CliError(told.message, code=told.code) from None
        return
    if facts["supported"]:
        write("\n".join(page(options.model, facts)) + "\n")
    if failure is not None:
        raise failure


def _codes(error: Exception) -> str:
    return "bad_tokenizer" if isinstance(error, TokenizerError) else "does_not_fit"


def _deployment(
    options: Options, model: ModelInfo, machine: Machine, facts: dict[str, Any]
) -> Deployment:
    """What would be started. Raises ModelError, PlanError, TokenizerError; `fits` is told before
    the latter."""
    try:
        plan(options, model, machine)
        facts["fits"] = True
    except PlanError:
        facts["fits"] = False
        raise
    require_tokenizer(model)
    if facts["text"]["error"] is not None:
        raise TokenizerError(facts["text"]["error"])
    return prepare(options, model=model, machine=machine)


def _model_facts(options: Options, model: ModelInfo) -> dict[str, Any]:
    backend = resolve_backend(options.backend)
    held = sized(
        model,
        backend=backend,
        dtype=options.dtype,
        quantize=options.quantize,
        kv_cache_dtype=options.kv_cache_dtype,
    )
    rows = holdings(model, backend, options.dtype, options.quantize)
    return {
        "model": dataclasses.asdict(model),
        "backend": backend,
        "weights": {
            "file_bytes": model.file_bytes,
            "packed_bytes": held.weight_bytes,
            "held": [dataclasses.asdict(row) for row in rows],
        },
        "kv": {
            "bytes_per_token": held.kv_bytes_per_token,
            "dtype": kv_dtype(backend, options.dtype, options.kv_cache_dtype),
        },
    }


def _family(model: ModelInfo) -> str:
    """What is special about its family."""
    return next((f.summary for f in FAMILIES if f.architecture == model.architecture), "")


def _text_facts(options: Options, model: ModelInfo) -> dict[str, Any]:
    """The tokenizer and the template. `error` says why there is no tokenizer; `template` is "ok",
    "none", or why it does not render."""
    facts: dict[str, Any] = {"error": None, "template": "none", "sample": None}
    try:
        require_tokenizer(model)
        tokenizer = load_tokenizer(model)
    except (TokenizerError, ModelError) as error:
        return facts | {"error": str(error.args[0])}
    ends = sorted({*tokenizer.eos_ids, *model.eos_token_ids})
    facts |= {
        "kind": _kind(tokenizer),
        "tokens": tokenizer.vocab_size,
        "special_tokens": len(tokenizer.special_ids),
        "adds_bos": tokenizer.add_bos,
        "bos": _named(tokenizer, [] if model.bos_token_id is None else [model.bos_token_id]),
        "ends": _named(tokenizer, ends),
    }
    try:
        template = load_template(tokenizer, options.chat_template)
        if template is not None:
            sample = template.render(CONVERSATION)
            tokenizer.encode(sample, add_special_tokens=False)
            facts |= {"template": "ok", "sample": sample}
    except (ChatError, TokenizerError) as error:
        facts |= {"template": str(error)}
    return facts


def _kind(tokenizer: Tokenizer) -> str:
    return f"{type(tokenizer.backend.model).__name__}, {tokenizer.pieces.spelling.value}"


def _named(tokenizer: Tokenizer, ids: list[int]) -> list[dict[str, Any]]:
    return [{"id": token, "text": tokenizer.token_text(token)} for token in ids]


def _plan_facts(deployment: Deployment) -> dict[str, Any]:
    plan = deployment.plan
    chats, length = plan.chats()
    return {
        "max_model_len": plan.max_model_len,
        "num_blocks": plan.num_blocks,
        "pools": plan.pools,
        "kv_tokens": plan.kv_tokens,
        "budget_bytes": plan.budget,
        "ledger": [dataclasses.asdict(line) for line in plan.ledger()],
        "chats": {"count": chats, "tokens": length},
        "threads": {"count": deployment.threads.count, "reason": deployment.threads.reason},
    }


def _commands(options: Options, has_template: bool) -> list[str]:
    """How to run it as it was checked: the flags that were given are kept."""
    words = [shlex.quote(options.model)]
    for name, source in options.sources.items():
        if source.kind == "flag" and name not in ("model", "log_level"):
            words += _flag(name, getattr(options, name))
    given = " ".join(words)
    ask = f"octavo chat {given}" if has_template else f"octavo run --raw --model {given} 'The sky'"
    return [f"octavo serve {given}", ask]


def _flag(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", shlex.quote(str(value))]


def _warnings(facts: dict[str, Any]) -> list[str]:
    """What a user should know although it runs."""
    model, text = facts.get("model"), facts.get("text")
    if model is None:
        return []
    found = []
    if padding := model["vocab_size"] - model["vocab_used"]:
        found.append(
            f"{padding:,} of the {model['vocab_size']:,} rows of the embedding have no token: "
            "padding, never sampled"
        )
    if model["tied"]:
        found.append("the embedding serves as the head too; it is held once")
    if model["rope"]:
        found.append(f"positions are scaled: {model['rope']}")
    found += [row["loses"] for row in facts["weights"]["held"] if row["loses"]]
    if any(row["held"].startswith("codes") for row in facts["weights"]["held"]):
        found.append(
            "products with codes round activations to int8; --dtype bfloat16 or float32 does not"
        )
    if facts["backend"] == "reference":
        found.append("the compiled kernels are not used: the numpy reference is much slower")
    if text is None or text["error"] is not None:
        return found
    if text["template"] == "none":
        found.append("there is no chat template: chats need --chat-template, completions work")
    elif text["template"] != "ok":
        found.append(f"the chat template does not render a plain conversation: {text['template']}")
    if not text["ends"]:
        found.append("no end token is known: answers end at max_tokens or at a stop string only")
    shortest = facts.get("max_model_len")
    if shortest is not None and shortest < model["max_position"]:
        found.append(
            f"the context is {shortest:,} tokens; the model could take {model['max_position']:,}"
        )
    return found
