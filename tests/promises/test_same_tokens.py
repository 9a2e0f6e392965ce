"""Promise 1: the same request gives the same tokens, whatever happens around it.

Requests run alone on a fresh engine, and then together in a pool that is too small, in chunks, with
shared prefixes, forks, penalties, aborts, and cut in the middle and resumed, on other numbers of
threads. On the compiled kernels and in the reference's row-at-a-time mode tokens and logprobs are
equal to the bit; in its batched mode, where the order of sums may change with the batch, peaked
models give the same tokens.
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
from octavo.ops.native import native_available
from octavo.ops.select import select_ops
from support import native_isas
from support.tiny_models import TinyModel, tiny_random

LOOSE = 400


@dataclass(frozen=True)
class Mode:
    """How it is computed, and whether equal to the bit. The kernels' blocks are multiples of 16."""

    backend: str
    dtype: str = "auto"
    kv_dtype: str = "float32"
    block: int = 16
    tight: int = 10
    exact: bool = True


EXACT = Mode("reference", block=4, tight=26)
BATCHED = Mode("reference", block=4, tight=26, exact=False)
KERNELS = {
    "cpu-float32": Mode("cpu", "float32"),
    "cpu-bfloat16": Mode("cpu", "bfloat16", "bfloat16"),
    "cpu-int8": Mode("cpu", "bfloat16", "int8"),
}
MODES = {"exact": EXACT, "batched": BATCHED, **(KERNELS if native_available() else {})}


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


def engine(model: TinyModel, mode: Mode, blocks: int, budget: int, threads: int = 1) -> EngineCore:
    alone = mode.backend == "reference" and mode.exact
    ops = select_ops(mode.backend, row_at_a_time=alone, dtype=mode.dtype, threads=threads)
    executor = ModelExecutor(
        Decoder(model.spec, model.source(), ops),
        ops,
        num_blocks=blocks,
        block_size=mode.block,
        kv_dtype=mode.kv_dtype,
    )
    config = SchedulerConfig(
        num_blocks=blocks, block_size=mode.block, max_model_len=256, max_num_batched_tokens=budget
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


def requests(seed: int, block: int) -> list[Submission]:
    """Greedy and seeded ones, with shared prefixes at and around block borders."""
    rng = random.Random(seed)
    shared = [rng.randrange(4, 250) for _ in range(4 * block)]
    found = []
    for index in range(8):
        common = rng.choice([0, block - 1, block, block + 1, 2 * block, len(shared)])
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


def alone(model: TinyModel, mode: Mode, submissions: list[Submission]) -> Answers:
    answers: Answers = {}
    for submission in submissions:
        core = engine(model, mode, LOOSE, 256)
        core.add(submission)
        run(core, answers)
    return answers


def crowded(
    model: TinyModel, mode: Mode, submissions: list[Submission], seed: int
) -> tuple[Answers, EngineCore]:
    """All at once in a tight pool with a small budget, some submitted late, others cut off."""
    rng = random.Random(seed)
    core = engine(model, mode, mode.tight, rng.choice([3, 7, 16, 64]), rng.choice([1, 2, 3]))
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
@pytest.mark.parametrize("name", MODES)
def test_b01_b03_b11_a_crowd_changes_nothing(family: str, name: str) -> None:
    mode = MODES[name]
    model = tiny_random(family, 3, peaked=not mode.exact, tied=family == "qwen2")
    preemptions = cached = 0
    for seed in range(6):
        submissions = requests(seed, mode.block)
        expected = alone(model, mode, submissions)
        found, core = crowded(model, mode, submissions, seed)
        assert found.keys() == expected.keys()
        for key, said in expected.items():
            if mode.exact:
                assert found[key] == said, (seed, key)
            else:
                assert (found[key].tokens, found[key].reason) == (said.tokens, said.reason)
        stats = core.scheduler.stats()
        assert stats.blocks_held == stats.running == stats.waiting == 0
        preemptions += core.scheduler.counters.preemptions
        cached += core.scheduler.counters.cached_tokens
    assert preemptions > 0 and cached > 0, "nothing was disturbed"


@pytest.mark.parametrize("cut", [1, 3, 8])
@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if mode.exact])
def test_resumed_after_a_cut_goes_on_with_the_same_tokens(name: str, cut: int) -> None:
    """What the client does after a crash: a new engine gets the prompt and the tokens so far."""
    model, mode = tiny_random("llama", 5), MODES[name]
    submissions = requests(11, mode.block)
    expected = alone(model, mode, submissions)
    first = engine(model, mode, LOOSE, 4 * mode.block)
    answers: Answers = {}
    for submission in submissions:
        first.add(submission)
    for _ in range(cut):
        note(answers, first.step())
    second = engine(model, mode, mode.tight, 4 * mode.block, threads=2)
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


@pytest.mark.parametrize("isa", native_isas.others())
def test_the_kernels_keep_it_in_every_instruction_set(isa: str) -> None:
    native_isas.run(__file__, isa, "-k", "cpu")
