"""An engine whose answers are scripted by the prompt: for tests of the server alone.

Owns: `FakeEngine`, which behaves like `engine.client.AsyncEngine` without a process.
Does not know: models. Output token k of a choice is `script[k]`; after the script comes EOS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from octavo.core.plan import TokenLogprob
from octavo.core.request import FinishReason, Output, Refused, Submission
from octavo.engine.health import EngineState, Health
from octavo.engine.messages import EngineStats
from support.tiny_tokenizer import EOS


class FakeStream:
    def __init__(self, engine: FakeEngine, submission: Submission) -> None:
        self.engine = engine
        self.submission = submission
        self.open = set(range(submission.params.choices))
        self.aborted: set[int] = set()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self._run()

    async def abort(self, choice: int | None = None) -> None:
        gone = set(self.open) if choice is None else {choice} & self.open
        self.open -= gone
        self.aborted |= gone
        if not self.open:
            self.engine.live.pop(self.submission.request_id, None)

    async def aclose(self) -> None:
        await self.abort()

    async def _run(self) -> AsyncIterator[Output]:
        engine = self.engine
        if engine.refuse is not None:
            raise engine.refuse
        await engine.gate.wait()
        step = 0
        while self.open:
            await asyncio.sleep(engine.delay)
            for choice in sorted(self.open):
                yield self._output(choice, step)
            step += 1

    def _output(self, choice: int, step: int) -> Output:
        engine, submission = self.engine, self.submission
        params = submission.params
        assert params.max_tokens is not None, "the server sets max_tokens"
        output = Output(submission.request_id, choice, cumulative_logprob=-float(step * choice))
        if step == 0:
            output.cached_tokens, output.queue_time = engine.cached, 0.001
            if params.prompt_logprobs is not None:
                output.prompt_logprobs = [
                    engine.score(token, params.prompt_logprobs) for token in submission.prompt[1:]
                ]
        if engine.fail_at == step:
            output.finish_reason = FinishReason.ERROR
            output.error, output.error_code = "the logits are not finite", "row_failed"
        elif step < params.max_tokens:
            at = step % len(engine.script) if engine.endless else step
            token = engine.script[at] if at < len(engine.script) else EOS
            output.tokens = [token]
            if params.wants_logprob:
                output.logprobs = [engine.score(token, params.logprobs or 0)]
            if token == EOS:
                output.finish_reason = FinishReason.STOP
            elif step + 1 == params.max_tokens:
                output.finish_reason = FinishReason.LENGTH
        else:
            output.finish_reason = FinishReason.LENGTH
        if output.finish_reason is not None:
            self.open.discard(choice)
            if not self.open:
                engine.live.pop(submission.request_id, None)
        return output


class FakeEngine:
    """`script`: what every choice says (token ids). `delay`: seconds a step takes. `gate`: cleared,
    nothing is computed. `refuse`: raised for every submission. `fail_at`: the step at which choices
    fail. `endless`: the script repeats until max_tokens. `stream_type`: who answers."""

    def __init__(self, script: Sequence[int] = (72, 105)) -> None:
        self.script = list(script)
        self.delay = 0.0
        self.cached = 0
        self.endless = False
        self.stream_type = FakeStream
        self.refuse: Refused | None = None
        self.fail_at: int | None = None
        self.logprob = -0.5
        self.state = EngineState.READY
        self.failed = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.live: dict[str, FakeStream] = {}
        self.submissions: list[Submission] = []
        self.stats = EngineStats(model="fake", blocks_total=64, blocks_held=16, blocks_free=48)

    def score(self, token: int, top: int) -> TokenLogprob:
        return TokenLogprob(token, self.logprob, 1, [(token, self.logprob)][:top])

    async def start(self) -> None:
        self.state = EngineState.READY

    def submit(self, submission: Submission) -> FakeStream:
        self.submissions.append(submission)
        stream = self.stream_type(self, submission)
        self.live[submission.request_id] = stream
        return stream

    def health(self) -> Health:
        return Health(self.state, str(self.state), 0)

    async def drain(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        return not self.live

    async def close(self) -> None:
        for stream in list(self.live.values()):
            await stream.abort()
