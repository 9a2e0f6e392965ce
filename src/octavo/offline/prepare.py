"""From a model's name and options to what offline generation runs on.

Owns: the options that differ offline: a list of prompts has no one to turn away.
Does not know: how the engine is planned (deploy) or driven (llm_engine), or a model's files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.config import resolve
from octavo.deploy import prepare as deploy
from octavo.deploy import threads_for
from octavo.engine.messages import EngineConfig
from octavo.frontend import load_template, load_tokenizer
from octavo.machine import limit_thread_pools
from octavo.model.info import ModelInfo
from octavo.text.chat import NO_TEMPLATE, ChatTemplate
from octavo.text.errors import ChatError
from octavo.text.tokenizer import Tokenizer

_UNBOUNDED = {"max_waiting_requests": 2**31 - 1, "max_waiting_tokens": 2**53}


@dataclass(frozen=True, slots=True)
class Prepared:
    """`generation` holds the model's own sampling defaults, by the names of SamplingParams."""

    config: EngineConfig
    model: ModelInfo
    tokenizer: Tokenizer
    generation: Mapping[str, Any]
    chat_template: str | None
    """The option: a template, or the path of one; None stands for the model's own."""

    def template(self) -> ChatTemplate:
        """Raises ChatError where there is none, or it cannot be read or does not compile."""
        template = load_template(self.tokenizer, self.chat_template)
        if template is None:
            raise ChatError(NO_TEMPLATE)
        return template


def prepare(model: str, options: Mapping[str, Any]) -> Prepared:
    """`options` as on the command line, by name. Raises ConfigError, ModelError, PlanError."""
    decided = resolve({**_UNBOUNDED, **options, "model": model})
    if "numpy" not in sys.modules:  # once it is loaded, its number of threads is fixed
        limit_thread_pools(threads_for(decided).count, os.environ)
    deployment = deploy(decided)
    return Prepared(
        deployment.engine,
        deployment.model,
        load_tokenizer(deployment.model),
        deployment.generation,
        decided.chat_template,
    )
