"""`octavo check`: is the model supported, does it fit, and what is the longest context.

Owns: that report, for people and as JSON.
Does not know: how models are read or memory is planned (deploy).
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from octavo.cli.console import Steps, plan_lines, write
from octavo.cli.errors import CliError, explain
from octavo.config import Options
from octavo.core.memory import PlanError, show_bytes
from octavo.deploy import Deployment, find_model, largest_context, prepare
from octavo.machine import Machine, inspect
from octavo.model.info import ModelInfo


def check(options: Options, as_json: bool) -> None:
    """Prints the report. Raises CliError where the model is not supported or does not fit."""
    machine = inspect()
    with Steps(1, quiet=True) as steps:
        model = find_model(options, steps.progress)
    try:
        deployment = prepare(options, model=model, machine=machine)
    except PlanError as error:
        told = explain(error)
        assert told is not None
        if as_json:
            facts = _facts(options, model, machine)
            facts |= {"fits": False, "error": told.message, "hint": told.hint.splitlines()}
            write(json.dumps(facts, indent=2) + "\n")
            raise CliError(told.message, code=told.code) from None
        write("\n".join(_model_lines(model)) + "\n")
        raise
    if as_json:
        facts = _facts(options, model, machine) | {"fits": True, "error": None}
        facts |= _plan_facts(deployment)
        write(json.dumps(facts, indent=2) + "\n")
        return
    longest = largest_context(options, model, machine)
    lines = [
        *_model_lines(model),
        *(f"  {line}" for line in plan_lines(deployment.plan)),
        f"  longest context that fits: {longest:,} tokens (the model's own limit is "
        f"{model.max_position:,})",
        f"  {deployment.threads}",
        f"  memory: {show_bytes(machine.memory)} ({machine.memory_reason})",
    ]
    write("\n".join(lines) + "\n")


def _model_lines(model: ModelInfo) -> list[str]:
    return [
        f"{model.name}: supported",
        f"  {model.architecture}, {model.parameters / 1e6:,.0f} million parameters, "
        f"{model.quantization} ({model.format})",
    ]


def _facts(options: Options, model: ModelInfo, machine: Machine) -> dict[str, Any]:
    return {
        "model": dataclasses.asdict(model),
        "supported": True,
        "memory_bytes": machine.memory,
        "memory_reason": machine.memory_reason,
        "largest_context": largest_context(options, model, machine),
    }


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
