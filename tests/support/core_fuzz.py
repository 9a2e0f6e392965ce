"""Random scenarios for the scheduler: everything that a client, a pool or an executor may do."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from octavo.core.admission import OutputLengths
from octavo.core.blocks import GroupSpec, span_blocks
from octavo.core.config import SchedulerConfig
from octavo.core.plan import Row, StepPlan
from octavo.core.request import ChoiceState, ServiceClass, Submission
from support.core_driver import EOS, VOCAB, Driver, expected_stream, submission
from support.shadow_tier import ShadowTier


def random_config(rng: Random) -> SchedulerConfig:
    size = rng.choice((1, 2, 4, 4, 8))
    blocks = rng.randint(2, 24)
    groups = ()
    if rng.random() < 0.2:
        groups = (GroupSpec(blocks, size), GroupSpec(blocks + rng.randint(0, 4), size))
    return SchedulerConfig(
        num_blocks=blocks,
        block_size=size,
        max_model_len=rng.choice((16, 40, 64)),
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=rng.choice((1, 3, 8, 16, 64)),
        max_waiting_requests=rng.choice((2, 16, 1000)),
        max_waiting_tokens=rng.choice((50, 10_000)),
        enable_prefix_caching=rng.random() < 0.8,
        eos_token_ids=(EOS,) if rng.random() < 0.5 else (),
        policy=rng.choice(("fcfs", "priority", "fair")),
        priority_ageing=rng.choice((0.0, 3.0)),
        batch_share=rng.choice((0.0, 0.05, 0.3)),
        target_tpot=rng.choice((None, None, 0.5, 1.5)),
        adaptive_rule=rng.choice(("proportional", "step")),
        groups=groups,
        max_queue_delay=rng.choice((None, None, 10.0)),
    )


def with_windows(rng: Random, config: SchedulerConfig) -> SchedulerConfig:
    """The same with windowed groups: beside full attention, of two sizes, or alone; with pools that
    hold what a token sees, or less."""
    size, blocks = config.block_size, config.num_blocks
    windows = rng.choice(((0, 0), (0, 1), (1, 0), (1,), (1,), (1, 1), (0, 1, 1)))
    groups = []
    for windowed in windows:
        window = rng.randint(1, 20) if windowed else 0
        pool = max(1, rng.choice((blocks, blocks // 2, span_blocks(window or 1, size))))
        groups.append(GroupSpec(pool if windowed else blocks, size, window))
    return replace(config, groups=tuple(groups))


class Optimist(OutputLengths):
    """Expects everyone to end at once, so that too many are admitted and preemption is common."""

    def remaining(self, outputs: int, limit: int, caution: int) -> int:
        return 0


class Fuzz:
    """One random scenario, reproducible from its seed: with random windows, or with one KV group
    of the window `group`."""

    def __init__(
        self,
        seed: int,
        windows: bool = False,
        group: int | None = None,
        tier: ShadowTier | None = None,
    ) -> None:
        self.rng = Random(seed)
        config = random_config(self.rng)
        if windows:
            config = with_windows(self.rng, config)
        if group is not None:
            one = GroupSpec(config.num_blocks, config.block_size, group)
            config = replace(config, groups=(one,))
        self.fail_rate = self.rng.choice((0.0, 0.0, 0.002))
        self.abort_rate = self.rng.choice((0.0, 0.05))
        self.arrival_rate = self.rng.choice((0.1, 0.4, 0.9))
        self.batch_rate = self.rng.choice((0.0, 0.5, 0.9))
        self.extras = self.rng.random() < 0.5
        self.most_live = self.rng.choice((6, 12, 30))
        self.driver = Driver(config, lag=self.rng.random() < 0.5, fail=self._fails, tier=tier)
        if self.rng.random() < 0.4:
            self.driver.scheduler.books.lengths = Optimist()
        self.prefixes = [
            [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 30))] for _ in range(3)
        ]
        self.count = 0

    def run(self, steps: int) -> int:
        """Arrivals for a while, then until idle; returns the scheduled steps."""
        rng, driver = self.rng, self.driver
        for _ in range(steps):
            if (
                rng.random() < self.arrival_rate
                and len(driver.scheduler.books.live) < self.most_live
            ):
                self._arrive()
            if driver.scheduler.books.live and rng.random() < self.abort_rate:
                live = rng.choice(list(driver.scheduler.books.live.values()))
                choice = rng.choice((None, rng.randrange(live.submission.params.choices)))
                driver.abort(live.submission.request_id, choice)
            if rng.random() < 0.01:
                driver.scheduler.reset_prefix_cache()
            if driver.scheduler.has_work():
                driver.step()
            else:
                driver.now += 1.0
        driver.run()
        driver.verify()
        return driver.steps

    def _fails(self, plan: StepPlan, row: Row) -> str | None:
        return "non-finite logits" if self.rng.random() < self.fail_rate else None

    def _arrive(self) -> None:
        request = self._request()
        self.count += 1
        self.driver.try_add(request)

    def _request(self) -> Submission:
        rng = self.rng
        prompt = list(rng.choice(self.prefixes))
        prompt = prompt[: rng.choice((len(prompt), rng.randint(1, len(prompt))))]
        prompt += [rng.randrange(VOCAB) for _ in range(rng.choice((0, 0, 1, 5)))]
        options: dict[str, Any] = {
            "max_tokens": rng.choice((None, 0, 1, 2, rng.randint(3, 24))),
            "n": rng.choice((1, 1, 1, 2, 4)),
            "priority": rng.randint(-2, 2),
            "arrival": self.driver.now,
            "tenant": rng.choice("abc"),
            "service_class": ServiceClass.BATCH
            if rng.random() < self.batch_rate
            else ServiceClass.REALTIME,
        }
        if self.extras:
            options |= {
                "ignore_eos": rng.random() < 0.3,
                "stop_token_ids": (rng.randrange(VOCAB),),
                "min_tokens": rng.choice((0, 0, 4)),
                "prompt_logprobs": rng.choice((None, None, 0)),
                "logprobs": rng.choice((None, 1)),
                "alone": rng.random() < 0.1,
                "salt": rng.choice(("", "", "a")),
                "adapter": rng.choice((None, None, "a")),
                "timeout": rng.choice((None, None, None, rng.uniform(1, 60))),
                "service_class": rng.choice(list(ServiceClass)),
            }
        if options["max_tokens"] is not None:
            options["min_tokens"] = min(options.get("min_tokens", 0), options["max_tokens"])
        request = submission(f"r{self.count}", prompt, rng.randrange(1000), **options)
        if self.extras and rng.random() < 0.1:
            request.resumed = self._halfway(request)
        return request

    def _halfway(self, request: Submission) -> list[ChoiceState]:
        """The states of a request that was interrupted at some point."""
        config, source = self.driver.scheduler.config, self.driver.source
        room = self.driver.scheduler.books.tables.longest
        states = []
        for choice in range(request.params.choices):
            tokens, _ = expected_stream(request, choice, config, source)
            done = self.rng.randint(0, len(tokens))
            if len(request.prompt) + done > min(config.max_model_len - 1, room):
                done = 0
            states.append(ChoiceState(choice, tokens[:done], 0.0, 0 < done == len(tokens)))
        return states
