"""`octavo run`: one prompt, answered in this process, streamed to standard output.

Owns: loading a model in-process for a person (`Talker`), and that command.
Does not know: how steps run (offline.llm_engine) or how chats are rendered (text.chat).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.cli.console import Steps, write
from octavo.cli.errors import CliError
from octavo.config import Options
from octavo.core.params import SamplingParams
from octavo.deploy import find_model, generation_defaults, threads_for
from octavo.machine import limit_thread_pools

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ask:
    """How the user wants answers: None leaves it to the model's own defaults."""

    max_tokens: int
    temperature: float | None = None
    seed: int | None = None
    system: str | None = None

    def params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        chosen = {"temperature": self.temperature, "seed": self.seed}
        given = {name: value for name, value in chosen.items() if value is not None}
        return SamplingParams(**{**defaults, **given, "max_tokens": self.max_tokens})

    def begin(self) -> list[dict[str, Any]]:
        """The conversation before the user says anything."""
        return [{"role": "system", "content": self.system}] if self.system else []


def run(options: Options, prompt: str, ask: Ask, raw: bool) -> None:
    if prompt == "-":
        prompt = sys.stdin.read()
    talker = Talker(options, ask)
    if raw:
        pieces = talker.complete(prompt)
    else:
        pieces = talker.answer([*ask.begin(), {"role": "user", "content": prompt}])
    for piece in pieces:
        write(piece)
    write("\n")


class Talker:
    """A model in this process that answers one conversation at a time, piece by piece."""

    def __init__(self, options: Options, ask: Ask) -> None:
        # The pools read their thread count when numpy is first imported, which is below this line.
        limit_thread_pools(threads_for(options).count, os.environ)
        from octavo.offline.llm_engine import LLMEngine

        with Steps(2) as steps:
            steps.begin(f"Finding the model {options.model}")
            model = find_model(options, steps.progress)
            steps.begin("Loading the weights")
            given = {name: getattr(options, name) for name in options.sources if name != "model"}
            self._engine = LLMEngine(
                options.model,
                loading=lambda done, total: steps.progress("Packing weights", done, total),
                **given,
            )
        self._params = ask.params(generation_defaults(options, model))
        self._turn = 0

    def answer(self, messages: Messages) -> Iterator[str]:
        """The pieces of the assistant's next message. Raises ChatError, CliError."""
        text = self._engine.prepared.template().render(list(messages))
        return self._generate(self._engine.tokenizer.encode(text, add_special_tokens=False))

    def complete(self, prompt: str) -> Iterator[str]:
        """The pieces of a plain continuation."""
        return self._generate(self._engine.tokenizer.encode(prompt))

    def _generate(self, prompt: Sequence[int]) -> Iterator[str]:
        self._turn += 1
        request_id = f"turn-{self._turn}"
        self._engine.add_request(request_id, prompt, self._params)
        shown = 0
        try:
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    answer = output.outputs[0]
                    if answer.error is not None:
                        raise CliError(answer.error)
                    yield answer.text[shown:]
                    shown = len(answer.text)
        finally:
            self._engine.abort_request(request_id)
