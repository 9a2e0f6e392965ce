"""The same requests alone and in a crowd: what promise 1 compares.

Owns: running submissions by themselves on fresh engines, and all at once under every disturbance:
a pool that is too small, chunks, shared prefixes, aborts, a cut in the middle and a new engine.
Does not know: the model. `start(blocks, budget, threads, seed)` makes an engine; with a seed its
block ids are permuted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from octavo.core.admission import OutputLengths
from octavo.core.invariants import check
from octavo.core.params import SamplingParams
from octavo.core.request import ChoiceState, Output, Submission
from octavo.engine.engine_core import EngineCore

Start = Callable[[int, int, int, int | None], EngineCore]

LOOSE = 400
"""Blocks that are surely enough."""


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
    raise AssertionError(f"work is left after {steps} steps")


def requests(
    seed: int, block: int, *, count: int = 8, words: int = 250, longest: int = 9, outputs: int = 24
) -> list[Submission]:
    """Greedy and seeded ones, with shared prefixes at and around block borders."""
    rng = random.Random(seed)
    shared = [rng.randrange(4, words) for _ in range(4 * block)]
    found = []
    for index in range(count):
        common = rng.choice([0, block - 1, block, block + 1, 2 * block, len(shared)])
        prompt = shared[:common] + [rng.randrange(4, words) for _ in range(rng.randrange(longest))]
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 2, 3]),
            temperature=rng.choice([0.0, 0.0, 0.8, 1.5]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 20]),
            min_p=rng.choice([0.0, 0.05]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            presence_penalty=rng.choice([0.0, 0.5]),
            max_tokens=rng.randrange(1, outputs),
            min_tokens=rng.choice([0, 1]),
            stop_token_ids=tuple(rng.sample(range(4, words), 3)),
            logprobs=rng.choice([None, 2]),
        )
        found.append(
            Submission(f"r{index}", prompt or [5], params, rng.randrange(2**40), priority=index % 3)
        )
    return found


def alone(start: Start, submissions: Sequence[Submission]) -> Answers:
    answers: Answers = {}
    for submission in submissions:
        core = start(LOOSE, 256, 1, None)
        core.add(submission)
        run(core, answers)
    return answers


def crowded(
    start: Start, submissions: Sequence[Submission], blocks: int, seed: int
) -> tuple[Answers, EngineCore]:
    """All at once in a tight pool with a small budget, some submitted late, others cut off."""
    rng = random.Random(seed)
    core = start(blocks, rng.choice([3, 7, 16, 64]), rng.choice([1, 2, 3]), seed)
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


def cut_and_resumed(
    start: Start, submissions: Sequence[Submission], cut: int, blocks: int, budget: int
) -> tuple[Answers, int]:
    """What the client does after a crash: after `cut` steps a new engine gets the prompts and the
    tokens so far. Also returns how many requests were resumed in the middle."""
    first = start(LOOSE, budget, 1, None)
    answers: Answers = {}
    for submission in submissions:
        first.add(submission)
    for _ in range(cut):
        note(answers, first.step())
    second = start(blocks, budget, 2, cut)
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
    return answers, resumed
