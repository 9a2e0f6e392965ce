"""From a model's name and options to what offline generation runs on.

Owns: the options that differ offline (a list of prompts has no one to turn away), and the text
side of a model.
Does not know: how the engine is planned (deploy) or driven (llm_engine).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config import resolve
from octavo.deploy import prepare as deploy
from octavo.deploy import threads_for
from octavo.engine.messages import EngineConfig
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
    template_source: str | None

    def template(self) -> ChatTemplate:
        """Raises ChatError where there is none, or it does not compile."""
        if self.template_source is None:
            raise ChatError(NO_TEMPLATE)
        return ChatTemplate(self.template_source, self.tokenizer.named_tokens)


def prepare(model: str, options: Mapping[str, Any]) -> Prepared:
    """`options` as on the command line, by name. Raises ConfigError, ModelError, PlanError."""
    decided = resolve({**_UNBOUNDED, **options, "model": model})
    if "numpy" not in sys.modules:  # once it is loaded, its number of threads is fixed
        limit_thread_pools(threads_for(decided).count, os.environ)
    deployment = deploy(decided)
    tokenizer = load_tokenizer(deployment.model)
    source = tokenizer.chat_template
    if decided.chat_template is not None:
        source = _template_text(decided.chat_template)
    return Prepared(deployment.engine, deployment.model, tokenizer, deployment.generation, source)


def load_tokenizer(model: ModelInfo) -> Tokenizer:
    """The tokenizer that comes with the model. Raises TokenizerError."""
    if model.format == "gguf":
        from octavo.model.gguf import read_metadata
        from octavo.text.gguf_tokenizer import from_gguf_metadata

        return from_gguf_metadata(read_metadata(model.path))
    from octavo.text.hf_tokenizer import from_directory

    return from_directory(model.path)


def _template_text(option: str) -> str:
    """An option's value is a template, or the path of one."""
    if "{" in option or "\n" in option:
        return option
    return Path(option).read_text(encoding="utf-8")
