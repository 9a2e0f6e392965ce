"""Promise 1: the same request gives the same tokens, whatever happens around it.

Requests run alone on a fresh engine, and then together in a pool that is too small, in chunks, with
shared prefixes, forks, penalties, aborts, and cut in the middle and resumed. In the reference's
row-at-a-time mode tokens and logprobs are equal to the bit; in its batched mode, where the order of
sums may change with the batch, peaked models give the same tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from octavo.core.admission import OutputLengths
from octavo.core.config import SchedulerConfig
from octavo.core.invariants import check
from octavo.core.params import SamplingParams
from octavo.core.request import ChoiceState, Output, Submission
from octavo.core.scheduler import Scheduler
from octavo.engine.clock import MonotonicClock
from octavo.engine.engine_core import EngineCore
from octavo.model.decoder import Decoder
from octavo.model.executor import ModelExecutor
from octavo.ops.select import select_ops
from support.tiny_models import TinyModel, tiny_random

BLOCK = 4
LOOSE = 400
TIGHT = 26


@dataclass
class Said:
    """All that came for one choice."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cumulative: float = 0.0
    reason: str | None = None


Answers = dict[tuple[str, int], Said]


class Hopeful(OutputLengths):
    """Expects every answer to end with its next token, so that preemption has to help."""

    def remaining(self, outputs: int, limit: int, caution: int) -> int:
        return super().remaining(outputs, limit, caution) if caution else 1


def engine(model: TinyModel, exact: bool, blocks: int, budget: int) -> EngineCore:
    ops = select_ops("reference", row_at_a_time=exact)
    executor = ModelExecutor(
        Decoder(model.spec, model.source(), ops), ops, num_blocks=blocks, block_size=BLOCK
    )
    config = SchedulerConfig(
        num_blocks=blocks, block_size=BLOCK, max_model_len=256, max_num_batched_tokens=budget
    )
    return EngineCore(Scheduler(config), executor, MonotonicClock(), vocab_size=model.spec.vocab)


def note(answers: Answers, outputs: list[Output]) -> None:
    for output in outputs:
        said = answers.setdefault((output.request_id, output.choice), Said())
        assert said.reason is None, "an output after the last one"
        said.tokens += output.tokens
        said.logprobs += [entry.logprob for entry in output.logprobs or ()]
        said.cumulative = output.cumulative_logprob
        said.reason = output.finish_reason


def run(core: EngineCore, answers: Answers, steps: int = 5000) -> None:
    for _ in range(steps):
        if not core.has_work:
            return
        note(answers, core.step())
        check(core.scheduler)


def requests(seed: int) -> list[Submission]:
    """Greedy and seeded ones, with shared prefixes at and around block borders."""
    rng = random.Random(seed)
    shared = [rng.randrange(4, 250) for _ in range(4 * BLOCK)]
    found = []
    for index in range(8):
        common = rng.choice([0, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, len(shared)])
        prompt = shared[:common] + [rng.randrange(4, 250) for _ in range(rng.randrange(0, 9))]
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 2, 3]),
            temperature=rng.choice([0.0, 0.0, 0.8, 1.5]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 20]),
            min_p=rng.choice([0.0, 0.05]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            presence_penalty=rng.choice([0.0, 0.5]),
            max_tokens=rng.randrange(1, 24),
            min_tokens=rng.choice([0, 1]),
            stop_token_ids=tuple(rng.sample(range(4, 250), 3)),
            logprobs=rng.choice([None, 2]),
        )
        found.append(
            Submission(f"r{index}", prompt or [5], params, rng.randrange(2**40), priority=index % 3)
        )
    return found


def alone(model: TinyModel, exact: bool, submissions: list[Submission]) -> Answers:
    answers: Answers = {}
    for submission in submissions:
        core = engine(model, exact, LOOSE, 256)
        core.add(submission)
        run(core, answers)
    return answers


def crowded(
    model: TinyModel, exact: bool, submissions: list[Submission], seed: int
) -> tuple[Answers, EngineCore]:
    """All at once in a tight pool with a small budget, some submitted late, others cut off."""
    rng = random.Random(seed)
    core = engine(model, exact, TIGHT, rng.choice([3, 7, 16, 64]))
    core.scheduler.books.lengths = Hopeful()
    answers: Answers = {}
    order = rng.sample(submissions, len(submissions))
    for index, submission in enumerate(order):
        core.add(replace(submission, request_id=f"noise{index}"))
        core.add(submission)
        for _ in range(rng.randrange(0, 4)):
            note(answers, core.step())
            check(core.scheduler)
        if rng.random() < 0.7:
            note(answers, core.abort(f"noise{index}"))
    run(core, answers)
    return {key: said for key, said in answers.items() if key[0].startswith("r")}, core


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "batched"])
def test_b01_b03_b11_a_crowd_changes_nothing(family: str, exact: bool) -> None:
    model = tiny_random(family, 3, peaked=not exact, tied=family == "qwen2")
    preemptions = cached = 0
    for seed in range(6):
        submissions = requests(seed)
        expected = alone(model, exact, submissions)
        found, core = crowded(model, exact, submissions, seed)
        assert found.keys() == expected.keys()
        for key, said in expected.items():
            if exact:
                assert found[key] == said, (seed, key)
            else:
                assert (found[key].tokens, found[key].reason) == (said.tokens, said.reason)
        stats = core.scheduler.stats()
        assert stats.blocks_held == stats.running == stats.waiting == 0
        preemptions += core.scheduler.counters.preemptions
        cached += core.scheduler.counters.cached_tokens
    assert preemptions > 0 and cached > 0, "nothing was disturbed"


@pytest.mark.parametrize("cut", [1, 3, 8])
def test_resumed_after_a_cut_goes_on_with_the_same_tokens(cut: int) -> None:
    """What the client does after a crash: a new engine gets the prompt and the tokens so far."""
    model = tiny_random("llama", 5)
    submissions = requests(11)
    expected = alone(model, True, submissions)
    first = engine(model, True, LOOSE, 16)
    answers: Answers = {}
    for submission in submissions:
        first.add(submission)
    for _ in range(cut):
        note(answers, first.step())
    second = engine(model, True, TIGHT, 16)
    resumed = 0
    for submission in submissions:
        states = [
            ChoiceState(choice, said.tokens[:], said.cumulative, said.reason is not None)
            for choice in range(submission.params.n)
            if (said := answers.setdefault((submission.request_id, choice), Said()))
        ]
        resumed += any(len(s.tokens) > 0 and not s.finished for s in states)
        if not all(state.finished for state in states):
            second.add(replace(submission, resumed=states))
    run(second, answers)
    assert answers == expected
    assert resumed or cut == 1
