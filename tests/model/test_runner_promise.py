"""The promise: the same tokens alone, in a crowd, chunked, forked and resumed; bitwise in
row-at-a-time mode (tokens and logprobs), tokens on a peaked model otherwise."""

from __future__ import annotations

import random

import pytest

from octavo.core.params import SamplingParams
from octavo.core.plan import TokenLogprob
from support.executor_driver import Driver, Seq
from support.tiny_models import TinyModel, tiny_random

KINDS = {
    "greedy": SamplingParams(temperature=0.0, logprobs=2),
    "seeded": SamplingParams(temperature=0.9, top_p=0.95, logprobs=2),
    "penalised": SamplingParams(
        temperature=0.7,
        top_k=40,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.3,
        logprobs=2,
    ),
}
TOKENS = 12


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(500) for _ in range(rng.randint(3, 40))] for _ in range(count)]


def alone(model: TinyModel, prompt: list[int], params: SamplingParams, **key: int) -> Seq:
    driver = Driver(model, seed=99)
    seq = driver.add(prompt, params, **key)
    driver.run([seq], TOKENS)
    return seq


def same(seq: Seq, twin: Seq) -> bool:
    def bits(logprobs: list[TokenLogprob]) -> list[object]:
        return [(p.token, p.logprob.hex(), p.rank, p.top) for p in logprobs]

    return seq.output == twin.output and bits(seq.logprobs) == bits(twin.logprobs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_b11_a_crowd_and_chunks_change_no_bit(kind: str, family: str) -> None:
    model, params = tiny_random(family, seed=11), KINDS[kind]
    wanted = [alone(model, p, params, seed=i) for i, p in enumerate(prompts(5, 1))]
    for chunk in (None, 0):
        driver = Driver(model, seed=3)
        mixed = [driver.add(p, params, seed=i) for i, p in enumerate(prompts(5, 1))]
        others = [driver.add(p, KINDS["seeded"], seed=7 + i) for i, p in enumerate(prompts(3, 2))]
        driver.run([*others, *mixed], TOKENS, chunk)
        assert all(same(a, b) for a, b in zip(mixed, wanted, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_forks_after_copy_on_write_give_what_separate_requests_give(kind: str) -> None:
    model, params = tiny_random(seed=12), KINDS[kind]
    prompt = prompts(1, 4)[0] + [1]
    for extra in range(4):  # the shared last block filled to every degree
        prompt = [*prompt, extra]
        wanted = [alone(model, prompt, params, seed=42, choice=c) for c in range(3)]
        driver = Driver(model, seed=5)
        first = driver.add(prompt, params, seed=42)
        while first.computed < len(prompt) - 1:
            driver.step([(first, min(7, len(prompt) - 1 - first.computed))])
        forks = [first, *(driver.fork(first, c, params) for c in (1, 2))]
        driver.run(forks, TOKENS)
        assert all(same(a, b) for a, b in zip(forks, wanted, strict=True))
        if kind == "seeded":
            assert len({tuple(f.output) for f in forks}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_with_its_history_it_goes_on_as_if_undisturbed(kind: str) -> None:
    model, params = tiny_random(seed=13), KINDS[kind]
    for i, prompt in enumerate(prompts(4, 6)):
        wanted = alone(model, prompt, params, seed=i)
        driver = Driver(model, seed=i)
        seq = driver.add(prompt, params, seed=i)
        driver.run([seq], 5)
        driver.end(seq)
        again = driver.add(prompt, params, seed=i, output=seq.output)
        driver.run([again], TOKENS, chunk=0)
        assert again.output == wanted.output


def test_a_full_cache_hit_computes_the_last_token_without_writing_it() -> None:
    model = tiny_random(seed=14)
    prompt = list(range(8, 24))  # four full blocks
    wanted = alone(model, prompt, KINDS["seeded"], seed=1)
    driver = Driver(model, seed=2)
    owner = driver.add(prompt, KINDS["seeded"], seed=3)
    driver.run([owner], 1)
    hit = driver.add(prompt, KINDS["seeded"], seed=1)
    hit.table, hit.computed = owner.table[:4], len(prompt) - 1
    plan = driver.plan([(hit, 1)])
    plan.rows[0].write_from = len(prompt)
    pools = [*driver.executor._cache.keys, *driver.executor._cache.values]
    before = [pool.copy() for pool in pools]
    result = driver.executor.collect(driver.executor.submit(plan))
    assert all((a == b).all() for a, b in zip(before, pools, strict=True))
    driver._take(hit, 1, result.rows[0])
    hit.table = list(hit.table)
    driver.run([hit], TOKENS)
    assert same(hit, wanted)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_tokens_agree_in_plain_mode_on_a_peaked_model(family: str) -> None:
    model = tiny_random(family, seed=15, peaked=True)
    expected = [alone(model, p, KINDS["greedy"]).output for p in prompts(5, 8)]
    for chunk in (None, 0):
        driver = Driver(model, rows=False, seed=4)
        seqs = [driver.add(p, KINDS["greedy"]) for p in prompts(5, 8)]
        assert driver.run(seqs, TOKENS, chunk) == expected
