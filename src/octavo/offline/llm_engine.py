"""The engine inside the own process, driven step by step by its user.

Owns: `LLMEngine`: requests as text or ids in, `RequestOutput`s out, one step at a time.
Does not know: HTTP, processes, progress bars (llm).
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace

from octavo.core.params import ParamError, SamplingParams
from octavo.core.request import Output, ServiceClass, Submission
from octavo.engine.build import Progress, build_engine_core
from octavo.offline.outputs import Collector, RequestOutput
from octavo.offline.prepare import Prepared, prepare

LAST_STORES = 2.0
"""Seconds that blocks on their way to the disk tier get at the end."""


class LLMEngine:
    """`options` are those of the server (`max_model_len`, `kv_tokens`, `max_num_seqs` ...).

        engine = LLMEngine("smollm2-135m", kv_tokens=8192)
        engine.add_request("a", "The sky is", SamplingParams(max_tokens=8))
        while engine.has_unfinished_requests():
            for output in engine.step(): ...

    `loading` is called with (bytes, bytes in all) while weights are packed, from the threads that
    pack. Raises what cannot be loaded or does not fit (ModelError, PlanError, ConfigError).
    """

    def __init__(self, model: str, *, loading: Progress | None = None, **options: object) -> None:
        self.prepared: Prepared = prepare(model, options)
        self.tokenizer = self.prepared.tokenizer
        self.config = self.prepared.config
        self._core, self._loaded = build_engine_core(self.config, progress=loading)
        # When nobody holds this any more, or the interpreter ends: what the disk tier is owed.
        self._end = weakref.finalize(self, self._core.close, LAST_STORES)
        self._collectors: dict[str, Collector] = {}
        self._early: list[Output] = []
        """Outputs that came with an abort: they may be of any request."""

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        service_class: ServiceClass = ServiceClass.REALTIME,
    ) -> None:
        """`prompt` is text or token ids; `params` None stands for the model's own defaults.
        Realtime requests go before batch ones, lower priorities first within a class.
        Raises ParamError and core.request.Refused."""
        if request_id in self._collectors:
            raise ParamError("request_id", f"request_id {request_id!r} is in use")
        if params is None:
            params = SamplingParams(**self.prepared.generation)
        if isinstance(params.stop, str):  # as users of other engines write it
            params = replace(params, stop=(params.stop,))
        text = prompt if isinstance(prompt, str) else None
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        submission = Submission(
            request_id,
            ids,
            params,
            secrets.randbits(63) if params.seed is None else params.seed,
            time.monotonic(),
            priority,
            service_class,
        )
        self._core.add(submission)  # refuses what is not fit for anything that follows
        self._collectors[request_id] = Collector(submission, text, self.tokenizer)

    def close(self) -> None:
        """Nothing follows. Blocks for the disk tier are written first; without one, nothing is to
        be done, and who lets go of this object need not call it."""
        self._end()

    def abort_request(self, request_id: str) -> None:
        """Forgets a request; unknown ids are ignored."""
        if self._collectors.pop(request_id, None) is not None:
            self._early += self._core.abort(request_id)

    def has_unfinished_requests(self) -> bool:
        return bool(self._collectors)

    def step(self) -> list[RequestOutput]:
        """One step; returns the requests that it advanced, each as far as it has come."""
        touched: dict[str, Collector] = {}
        outputs, self._early = self._early, []
        for output in outputs + self._core.step():
            collector = self._collectors.get(output.request_id)
            if collector is None:
                continue
            touched[output.request_id] = collector
            if collector.push(output):  # a stop string, which the engine knows nothing of
                self._early += self._core.abort(output.request_id, output.choice)
        results = [collector.result() for collector in touched.values()]
        for request_id, collector in touched.items():
            if collector.finished:
                del self._collectors[request_id]
        return results
