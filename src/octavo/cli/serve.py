"""`octavo serve`: from a command to a server that answers, with every step told.

Owns: the order of the steps and what is printed: progress, then the facts of what is served.
Does not know: how models are found or planned (deploy), or how requests are served (server).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable

from octavo.cli.console import Steps, plan_lines
from octavo.cli.errors import NO_COMPILER, CliError
from octavo.config import Options
from octavo.core.memory import show_bytes
from octavo.deploy import Deployment, find_model, prepare, threads_for, with_threads
from octavo.engine.launch import EarlyEngine
from octavo.machine import Machine, inspect, limit_thread_pools, raise_open_file_limit

logger = logging.getLogger("octavo.serve")

CHAT = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "temperature": 0}'
TEXT = '{"prompt": "The sky is blue because", "temperature": 0, "max_tokens": 32}'


def serve(options: Options) -> None:
    """Serves until a signal, then exits with the server's code."""
    machine = inspect()
    options = with_threads(options, machine)
    limit_thread_pools(threads_for(options).count, os.environ)
    raise_open_file_limit()
    with EarlyEngine() as spawn:
        sys.exit(_serve(options, machine, spawn))


def _serve(options: Options, machine: Machine, spawn: EarlyEngine) -> int:
    from octavo.server.auth import check_exposure, load_keys

    keys = load_keys(options.api_key, options.api_key_file)
    check_exposure(options.host, keys, options.allow_public)
    # With JSON logs the output is for programs: the log lines say what there is to say.
    quiet = options.log_format == "json"
    with Steps(5, quiet=quiet, say=logger.info if quiet else None) as steps:
        steps.begin(f"Taking port {options.port} on {options.host}")
        with _listen(options) as bound:
            steps.begin(f"Finding the model {options.model}")
            model = find_model(options, steps.progress)
            steps.begin("Planning memory")
            deployment = prepare(options, model=model, machine=machine)
            for warning in deployment.warnings:
                steps.warn(warning)
            warn_without_kernels(steps.say)
            packed = show_bytes(deployment.plan.model.weight_bytes)
            steps.begin(f"Loading the weights ({packed}) and warming up")

            spawn.load(deployment.engine)
            # Only now: what is refused above is refused before HTTP is imported, and the engine
            # loads meanwhile.
            from octavo.server.lifecycle import run_server

            def started(url: str, chats: bool) -> None:
                steps.begin("Ready")
                for line in facts(deployment, url, chats):
                    steps.say(line)
                logger.info("%s is served at %s", deployment.engine.served_name, url)

            return run_server(
                deployment.options,
                model,
                deployment.engine,
                deployment.generation,
                bound=bound,
                started=started,
                spawn=spawn,
                loading=lambda done, total: steps.progress("Packing weights", done, total),
            )


def _listen(options: Options) -> socket.socket:
    from octavo.server.port import PortInUse, bind

    try:
        return bind(options.host, options.port)
    except PortInUse:
        raise
    except OSError as error:
        raise CliError(
            f"cannot listen on {options.host}, port {options.port}: {error.strerror or error}",
            "choose another --host or --port",
        ) from None


def warn_without_kernels(say: Callable[[str], None]) -> None:
    """Says what an install without compiled kernels costs, and how to get them."""
    from octavo.ops.native import native_reason

    reason = native_reason()
    if reason:
        say(f"note: {reason}.\n{NO_COMPILER}")


def facts(deployment: Deployment, url: str, chats: bool) -> list[str]:
    """What the user should know once it serves. Without a chat template a text is completed."""
    model, options = deployment.model, deployment.options
    route, body = ("chat/completions", CHAT) if chats else ("completions", TEXT)
    authorization = ' -H "Authorization: Bearer $OCTAVO_API_KEY"' if _guarded(deployment) else ""
    return [
        "",
        f"model    {options.served_model_name[0]}: {model.architecture}, "
        f"{model.parameters / 1e6:,.0f} million parameters, {model.quantization}",
        f"sampling {_sampling(deployment)}",
        f"context  {deployment.plan.max_model_len:,} tokens",
        f"compute  {deployment.threads}",
        *(f"{'memory' if not index else '':<9}{line}"
          for index, line in enumerate(plan_lines(deployment.plan))),
        f"url      {url}  (OpenAI's API at {url}/v1)",
        "",
        f"  curl {url}/v1/{route}{authorization} -H 'Content-Type: application/json' \\",
        f"    -d '{body}'",
        "",
        "Ctrl-C drains",
    ]  # fmt: skip


def _sampling(deployment: Deployment) -> str:
    """The defaults of requests that do not say otherwise."""
    if not deployment.generation:
        return "OpenAI's defaults"
    told = ", ".join(f"{name} {value}" for name, value in deployment.generation.items())
    source = deployment.options.generation_config
    return f"{told} ({'the model' if source == 'auto' else source}'s defaults)"


def _guarded(deployment: Deployment) -> bool:
    return bool(deployment.options.api_key or deployment.options.api_key_file)
