"""Drives a scheduler with a null executor, checks it after every step, and knows what must come.

Also here: the SMALL-POOL configuration and the leak oracle.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from octavo.core.config import SchedulerConfig
from octavo.core.events import Event
from octavo.core.invariants import Endings, check, check_plan
from octavo.core.params import SamplingParams
from octavo.core.plan import Row, StepPlan
from octavo.core.request import FinishReason, Output, Refused, Submission
from octavo.core.scheduler import Scheduler
from octavo.sim.null_executor import TokenSource, hashed_tokens
from support.shadow_executor import ShadowExecutor
from support.shadow_tier import ShadowTier, TieredShadow

VOCAB = 50
EOS = 7
Choice = tuple[str, int]


def small_pool(**changes: Any) -> SchedulerConfig:
    """Fixture SMALL-POOL: preemption, eviction and "does not fit" within a few steps."""
    values: dict[str, Any] = {
        "num_blocks": 16,
        "block_size": 4,
        "max_model_len": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
    }
    return SchedulerConfig(**(values | changes))


def submission(request_id: str, prompt: list[int], seed: int = 1, **kwargs: Any) -> Submission:
    """A submission; keywords that `Submission` does not have are sampling parameters."""
    own = {k: kwargs.pop(k) for k in list(kwargs) if k in Submission.__dataclass_fields__}
    return Submission(request_id, prompt, SamplingParams(**kwargs), seed, **own)


def expected_stream(
    request: Submission, choice: int, config: SchedulerConfig, source: TokenSource
) -> tuple[list[int], FinishReason]:
    """The tokens of a choice that nothing disturbs, by the plain rules of stopping."""
    params, tokens = request.params, []
    length = len(request.prompt)
    while True:
        full = len(tokens) == params.max_tokens or length + len(tokens) >= config.max_model_len
        if full:
            return tokens, FinishReason.LENGTH
        token = source(request.seed, choice, length + len(tokens))
        tokens.append(token)
        eos = token in config.eos_token_ids and not params.ignore_eos
        if len(tokens) >= params.min_tokens and (eos or token in params.stop_token_ids):
            return tokens, FinishReason.STOP


def assert_no_leak(scheduler: Scheduler) -> None:
    """The leak oracle: idle means that nothing is held by anyone."""
    assert not scheduler.has_work()
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.waiting_tokens) == (0, 0, 0)
    assert stats.blocks_held == 0
    for pool in scheduler.books.tables.pools:
        assert pool.free + pool.cached == pool.total
        assert all(pool.refs(block) == 0 for block in range(pool.total))
    assert not scheduler.books.live and not scheduler.books.lingering
    assert scheduler.counters.stalls == 0
    check(scheduler)


class Driver:
    """One scheduler and one executor; `step` is one turn of the engine's loop.

    `lag` keeps two steps in flight. `collected` has every choice's tokens, `finals` its last
    output, `log` all events.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        lag: bool = False,
        source: TokenSource | None = None,
        fail: Callable[[StepPlan, Row], str | None] | None = None,
        tier: ShadowTier | None = None,
        **kwargs: Any,
    ) -> None:
        self.log: list[Event] = []
        self.source = source or hashed_tokens(VOCAB)
        self.scheduler = Scheduler(config, sink=self.log.append, tier=tier, **kwargs)
        depth = 2 if lag else 1
        self.executor: ShadowExecutor = (
            ShadowExecutor(config.group_specs, self.source, max_in_flight=depth, fail=fail)
            if tier is None
            else TieredShadow(tier, config.group_specs, self.source, max_in_flight=depth, fail=fail)
        )
        self.collected: dict[Choice, list[int]] = {}
        self.finals: dict[Choice, Output] = {}
        self.told: dict[str, list[Output]] = {}
        self.requests: dict[str, Submission] = {}
        self.plans: list[StepPlan] = []
        self.steps = 0
        self.now = 0.0
        self._lag = lag
        self._flying: deque[tuple[StepPlan, int]] = deque()
        self._endings = Endings()

    def add(self, request: Submission) -> None:
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        for state in request.resumed:
            self.collected[request.request_id, state.choice] = list(state.tokens)

    def try_add(self, request: Submission) -> bool:
        """False if it is refused."""
        try:
            self.add(request)
        except Refused:
            return False
        return True

    def abort(self, request_id: str, choice: int | None = None) -> None:
        self._see(self.scheduler.abort(request_id, choice, self.now))
        check(self.scheduler)

    def step(self) -> list[Output]:
        """Plan one step and commit one (with lag: the one before)."""
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        check_plan(self.scheduler, plan)
        for live in self.scheduler.books.live.values():
            assert (live.submission.deadline or math.inf) > self.now, "it is late and goes on"
        outputs: list[Output] = []
        if not plan.empty:
            self.steps += 1
            self.plans.append(plan)
            self._flying.append((plan, self.executor.submit(plan)))
        elif not self._flying:
            outputs = self.scheduler.resolve_stall(self.now)
        if self._flying and (len(self._flying) > self._lag or plan.empty):
            flown, handle = self._flying.popleft()
            result = self.executor.collect(handle)
            outputs = self.scheduler.commit(flown, result, self.now)
        check(self.scheduler)
        self._see(outputs)
        return outputs

    def run(self, limit: int = 20_000) -> None:
        """Until idle; then nothing may be left behind."""
        for _ in range(limit):
            if not self.scheduler.has_work():
                break
            self.step()
        else:
            raise AssertionError(f"not idle after {limit} steps")
        assert_no_leak(self.scheduler)

    def verify(self) -> None:
        """Every choice ended, with the tokens that it would have had alone."""
        for request in self.requests.values():
            if request.request_id not in self.told:
                assert all(state.finished for state in request.resumed) and request.resumed
                continue
            self._verify_prompt_logprobs(request)
            resumed = {state.choice for state in request.resumed if state.finished}
            for choice in range(request.params.choices):
                if choice not in resumed:
                    self._verify_choice(request, choice)

    def _verify_prompt_logprobs(self, request: Submission) -> None:
        """Given once, whole, with the first output; unless nothing at all came before the end."""
        mine = self.told[request.request_id]
        given = [o for o in mine if o.prompt_logprobs is not None]
        interrupted = any(state.tokens or state.finished for state in request.resumed)
        if request.params.prompt_logprobs is None or interrupted:
            assert not given
        elif any(o.tokens for o in mine) or given:
            assert len(given) == 1
            told = given[0].prompt_logprobs
            assert told is not None
            assert [entry.token for entry in told] == request.prompt[1:]
            for i, entry in enumerate(told):
                assert entry == self.executor.made_up(request.prompt[i + 1], i + 1)

    def _verify_choice(self, request: Submission, choice: int) -> None:
        key = (request.request_id, choice)
        config = self.scheduler.config
        tokens, reason = expected_stream(request, choice, config, self.source)
        got, final = self.collected.get(key, []), self.finals[key]
        assert got == tokens[: len(got)], key
        if request.params.wants_logprob and not request.resumed:
            start = len(request.prompt)
            made_up = [self.executor.made_up(t, start + i).logprob for i, t in enumerate(got)]
            assert final.cumulative_logprob == sum(made_up), key
        if final.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            assert final.error_code != "stalled", final.error
            return
        if len(got) == len(tokens):
            assert final.finish_reason == reason, key
        else:
            # It was alone and filled the pool: one token is known that no block is left for.
            room = self.scheduler.books.tables.longest
            assert final.finish_reason == FinishReason.LENGTH
            assert len(request.prompt) + len(got) == room + 1, key

    def _see(self, outputs: list[Output]) -> None:
        self._endings.see(outputs)
        for output in outputs:
            key = (output.request_id, output.choice)
            self.told.setdefault(output.request_id, []).append(output)
            self.collected.setdefault(key, []).extend(output.tokens)
            if output.finish_reason is not None:
                self.finals[key] = output
