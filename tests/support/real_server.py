"""The real engine behind a server in this process.

Owns: the way from a model directory and options to a `LiveServer`.
Does not know: what is asked of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.config import resolve
from octavo.deploy import prepare
from octavo.engine.client import AsyncEngine
from octavo.server.serving import Serving, build_serving
from support.live_server import LiveServer


def real_server(path: Path, **options: Any) -> LiveServer:
    """Small by default: 512 tokens of context, blocks of 4, a pool of 4,096 tokens."""
    small = {"max_model_len": 512, "kv_tokens": 4096, "block_size": 16, "threads": 1}
    names = {"served_model_name": ["tiny"]}
    decided = resolve({**small, **names, **options, "model": str(path)})
    plan = prepare(decided)

    def make() -> Serving:
        engine = AsyncEngine(plan.engine, watchdog_timeout=decided.watchdog_timeout)
        return build_serving(plan.options, plan.model, plan.engine, plan.generation, engine)

    return LiveServer(make)
