"""Offline generation: many prompts in, all answers out.

Owns: `LLM`: queueing a whole list, the progress bar, the order of results.
Does not know: how steps are run (llm_engine).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from octavo.core.params import ParamError, SamplingParams
from octavo.offline.llm_engine import LLMEngine
from octavo.offline.outputs import RequestOutput
from octavo.progress import ByteProgress
from octavo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Advance = Callable[[int], None]


class LLM:
    """A model in this process.

        llm = LLM("smollm2-135m")
        for output in llm.generate(["The sky is", "2 + 2 ="], SamplingParams(max_tokens=16)):
            print(output.outputs[0].text)

    `progress` shows a bar while weights are packed, where standard error is a terminal. `options`
    as for `LLMEngine`.
    """

    def __init__(self, model: str, *, progress: bool = True, **options: object) -> None:
        with ByteProgress() as bar:

            def loading(done: int, total: int) -> None:
                bar.update("Packing weights", done, total)

            self.engine = LLMEngine(model, loading=loading if progress else None, **options)
        self._requests = 0

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """One result a prompt, in their order. A prompt is text or a list of token ids;
        `sampling_params` is one for all, or one each (None: the model's own defaults). Raises
        ParamError or core.request.Refused before anything is generated, where one of the prompts
        cannot be taken."""
        batch = _as_list(prompts)
        params: list[SamplingParams | None]
        if isinstance(sampling_params, SamplingParams) or sampling_params is None:
            params = [sampling_params] * len(batch)
        else:
            params = list(sampling_params)
        if len(params) != len(batch):
            raise ValueError(f"{len(params)} sampling_params for {len(batch)} prompts")
        ids = self._add(batch, params)
        results: dict[str, RequestOutput] = {}
        try:
            with _progress_bar(len(ids), progress) as advance:
                while len(results) < len(ids):
                    for output in self.engine.step():
                        if output.finished:
                            results[output.request_id] = output
                            advance(sum(len(answer.token_ids) for answer in output.outputs))
        finally:
            for request_id in ids:
                self.engine.abort_request(request_id)
        return [results[request_id] for request_id in ids]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """One conversation, or a list of them, rendered with the model's chat template."""
        first = messages[0] if messages else None
        single = isinstance(first, Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        template = self.engine.prepared.template()
        prompts = [
            self.tokenizer.encode(template.render(list(one)), add_special_tokens=False)
            for one in conversations
        ]
        return self.generate(prompts, sampling_params, progress=progress)

    def _add(self, prompts: list[Prompt], params: list[SamplingParams | None]) -> list[str]:
        ids: list[str] = []
        try:
            for prompt, one in zip(prompts, params, strict=True):
                self._requests += 1
                request_id = f"offline-{self._requests}"
                self.engine.add_request(request_id, prompt, one)
                ids.append(request_id)
        except BaseException:
            for request_id in ids:
                self.engine.abort_request(request_id)
            raise
        return ids


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt as a list of one. A flat list of ints is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    ids = [prompt for prompt in prompts if isinstance(prompt, int)]
    several = [prompt for prompt in prompts if not isinstance(prompt, int)]
    if ids and several:
        raise ParamError("prompts", "prompts must be one list of token ids, or texts and lists")
    return [ids] if ids else several


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Advance]:
    """Yields a function to call with the tokens of each finished prompt."""
    if not shown:
        yield lambda tokens: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("Generating", total=total, tokens=0)
        count = 0

        def advance(tokens: int) -> None:
            nonlocal count
            count += tokens
            bar.update(task, advance=1, tokens=count)

        yield advance
