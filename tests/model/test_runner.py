"""The executor: what a step gives back by row, and what a failing row leaves alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.core.params import SamplingParams
from octavo.core.plan import PENDING, Admitted, Copy, Row, StepPlan, Want
from octavo.engine.messages import EngineConfig
from octavo.model.errors import ModelError
from octavo.model.executor import LOGIT_ROWS
from octavo.model.runner import load
from octavo.ops import NONFINITE_LOGITS
from octavo.ops.reference import ReferenceOps
from support.dense_model import dense_logits, log_softmax
from support.executor_driver import GREEDY, Driver, Seq
from support.load_config import load_config
from support.tiny_models import chain, loop, tiny_random, write_tiny_random
from support.tiny_tokenizer import EOS, USER


def config(path: Path, **fields: Any) -> EngineConfig:
    return load_config(path, **{"backend": "reference", "block_size": 4, **fields})


def row(rid: int, tokens: list[int], **fields: object) -> Row:
    plain = {
        "start": 0,
        "tables": ([0, 1],),
        "write_from": 0,
        "logits_from": len(tokens) - 1,
        "want": Want.SAMPLE,
    }
    return Row(rid=rid, tokens=tokens, **{**plain, **fields})  # type: ignore[arg-type]


def admit(rid: int, history: list[int], params: SamplingParams = GREEDY) -> Admitted:
    return Admitted(rid, params, 0, 0, len(history), history)


def test_the_chain_is_walked_to_its_end() -> None:
    model = chain(["ABC", "DEF", "G", "HI", "J", "KLM"])
    driver = Driver(model, rows=False)
    assert driver.run([driver.add([USER])], 7) == [model.script]
    driver = Driver(loop(), rows=False)
    assert driver.run([driver.add([1, 2, 3])], 20) == [[3] * 20]


BAD_ROWS = {
    "out of range": (row(1, [5, 600]), "token id 600 is outside the vocabulary (0 to 511)"),
    "negative": (row(1, [5, -7]), "token id -7"),
    "no table": (row(1, [5] * 9, want=Want.NONE), "2 blocks of 4 do not cover 9 positions"),
    "block": (row(1, [5, 6], tables=([999],)), "outside the pool of 256 blocks"),
    "groups": (row(1, [5, 6], tables=([0], [1])), "2 block tables for 1 KV groups"),
    "empty": (row(1, [], want=Want.NONE, logits_from=0), "a row of 0 tokens"),
    "unknown": (row(77, [5, 6]), "sequence 77 was not admitted"),
    "adapter": (row(1, [5, 6], adapter="style"), "adapter 'style' is not loaded"),
    "pool": (row(1, [5, 6], want=Want.POOL), "pooled"),
    "pending": (row(1, [5, 6, PENDING]), "is not known"),
    "position": (row(1, [5]), "position 1, which is not the next"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a13_a_bad_row_fails_alone(name: str) -> None:
    bad, message = BAD_ROWS[name]
    driver = Driver(tiny_random(seed=1), rows=False)
    good = row(2, [8, 9, 10], tables=([4],))
    alone = driver.executor.submit(StepPlan(0, [good], [admit(2, [8, 9, 10])]))
    plan = StepPlan(1, [bad, good], [admit(1, [5, 6]), admit(2, [8, 9, 10])], ended=[2])
    result = driver.executor.collect(driver.executor.submit(plan))
    assert list(result.errors) == [bad.rid]
    assert message in result.errors[bad.rid]
    assert result.rows[1] == alone.rows[0]
    assert driver.executor.nonfinite == 0


def test_b08_logits_that_are_not_finite_fail_their_row_and_are_counted() -> None:
    model = tiny_random(seed=2)
    model.tensors["embed"][9] = np.nan
    driver = Driver(model, rows=False)
    params = SamplingParams(temperature=0.0, prompt_logprobs=0)
    bad = [driver.add([1, 9, 3]), driver.add([9, 1, 2], params)]
    good = driver.add([1, 2, 3])
    twin = Driver(model, rows=False)
    expected = twin.run([twin.add([1, 2, 3])], 6)
    driver.run([*bad, good], 6)
    assert [s.error for s in bad] == [NONFINITE_LOGITS] * 2
    assert driver.executor.nonfinite == 2
    assert [good.output] == expected
    # The blocks that hold NaNs do no harm to who gets them next.
    driver.end(bad[0])
    heir = driver.add([1, 2, 3])
    heir.table = list(bad[0].table)
    assert driver.run([heir], 4) == [expected[0][:4]]


def test_c12_out_of_memory_in_one_step_fails_its_rows_and_the_next_step_runs() -> None:
    class Tight(ReferenceOps):
        tight = True

        def linear(self, x, weight):  # type: ignore[no-untyped-def]
            if self.tight:
                raise MemoryError("no 3 GB")
            return super().linear(x, weight)

    ops = Tight()
    driver = Driver(tiny_random(seed=3), ops=ops)
    seqs = [driver.add([1, 2]), driver.add([3])]
    driver.step([(seqs[0], 2), (seqs[1], 1)])
    assert all("out of memory in this step (no 3 GB)" in (s.error or "") for s in seqs)
    ops.tight = False
    again = driver.add([1, 2])
    driver.run([again], 3)
    assert again.error is None


def test_c12_logits_are_computed_a_bounded_number_of_rows_at_a_time() -> None:
    class Watched(ReferenceOps):
        rows = 0

        def sample(self, logits, rows):  # type: ignore[no-untyped-def]
            Watched.rows = max(Watched.rows, len(logits))
            return super().sample(logits, rows)

        def score(self, logits, targets, top):  # type: ignore[no-untyped-def]
            Watched.rows = max(Watched.rows, len(logits))
            return super().score(logits, targets, top)

    driver = Driver(tiny_random(seed=4), ops=Watched(), num_blocks=2048)
    params = SamplingParams(temperature=0.0, prompt_logprobs=3)
    long = driver.add([i % 500 for i in range(300)], params)
    many = [driver.add([i, i + 1]) for i in range(150)]
    driver.run([long, *many], 2)
    assert Watched.rows == LOGIT_ROWS
    assert len(long.prompt_logprobs) == 299


@pytest.mark.parametrize("chunk", [None, 0, 1])
def test_prompt_logprobs_are_those_of_a_dense_model(chunk: int | None) -> None:
    model = tiny_random("qwen2", seed=5)
    prompt = [int(i) for i in np.random.default_rng(0).integers(0, 512, 21)]
    expected = log_softmax(dense_logits(model, prompt))
    driver = Driver(model, rows=False)
    seqs = [
        driver.add(prompt, SamplingParams(temperature=0.0, prompt_logprobs=top)) for top in (0, 3)
    ]
    driver.run(seqs, 1, chunk)
    for seq, top in zip(seqs, (0, 3), strict=True):
        assert [p.token for p in seq.prompt_logprobs] == prompt[1:]
        for i, entry in enumerate(seq.prompt_logprobs):
            assert abs(entry.logprob - expected[i, prompt[i + 1]]) < 1e-4
            assert entry.rank == 1 + (expected[i] > expected[i, prompt[i + 1]] + 1e-6).sum()
            best = np.argsort(-expected[i])[:top]
            assert [t for t, _ in entry.top] == best.tolist()


def test_a08_logprobs_of_sampled_tokens_are_raw_and_of_their_position() -> None:
    model = tiny_random(seed=6)
    params = SamplingParams(temperature=0.5, top_k=3, repetition_penalty=1.5, logprobs=4)
    driver = Driver(model, rows=False)
    seq = driver.add([5, 6, 7], params)
    driver.run([seq], 8)
    expected = log_softmax(dense_logits(model, seq.known))
    for i, entry in enumerate(seq.logprobs):
        at = expected[2 + i]
        assert entry.token == seq.output[i]
        assert abs(entry.logprob - at[entry.token]) < 1e-4
        assert [t for t, _ in entry.top] == np.argsort(-at)[:4].tolist()


def test_logprobs_come_only_where_they_are_asked_for() -> None:
    driver = Driver(tiny_random(seed=6), rows=False)
    plain, best = driver.add([5]), driver.add([5], SamplingParams(temperature=0.0, best_of=2))
    driver.run([plain, best], 3)
    assert plain.logprobs == []
    assert [entry.top for entry in best.logprobs] == [[], [], []]


def test_b09_penalties_in_one_batch_equal_an_independent_reference() -> None:
    model = tiny_random(seed=7)
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, repetition_penalty=1.3),
        SamplingParams(temperature=0.0, frequency_penalty=0.5),
        SamplingParams(temperature=0.0, presence_penalty=0.5),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=-0.4),
    ]
    prompts = [[3, 4, 5], [int(i) for i in np.random.default_rng(1).integers(0, 512, 30)]]
    for order in (1, -1):
        driver = Driver(model, rows=False)
        seqs = [driver.add(p, k) for p in prompts for k in kinds][::order]
        driver.run(seqs[1::2], 3)  # some are ahead of the others
        driver.run(seqs, 10)
        for seq in seqs:
            assert seq.output == reference_tokens(model, seq, 10)


def reference_tokens(model, seq: Seq, count: int) -> list[int]:  # type: ignore[no-untyped-def]
    output: list[int] = []
    for _ in range(count):
        x = dense_logits(model, seq.prompt + output)[-1]
        for t in set(seq.prompt) | set(output):
            penalty = seq.params.repetition_penalty
            x[t] = x[t] / penalty if x[t] > 0 else x[t] * penalty
        for t in set(output):
            x[t] -= seq.params.frequency_penalty * output.count(t) + seq.params.presence_penalty
        output.append(int(np.argmax(x)))
    return output


def test_min_tokens_bans_eos_and_stop_tokens_until_it_is_reached() -> None:
    model = chain(["AB", "CD", "EF"])
    stop = model.script[1]
    driver = Driver(model, rows=False)
    free = driver.add([USER], SamplingParams(temperature=0.0, min_tokens=0))
    held = driver.add([USER], SamplingParams(temperature=0.0, min_tokens=6))
    stopped = driver.add(
        [USER], SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(stop,))
    )
    driver.run([free, held, stopped], 8)
    assert free.output[:4] == model.script
    assert EOS not in held.output[:6]
    assert stop not in stopped.output[:2]
    # Resumed with two outputs, the count goes on from there.
    driver = Driver(model, rows=False)
    resumed = driver.add([USER], held.params, output=model.script[:3])
    driver.run([resumed], 9)
    assert EOS not in resumed.output[:6]


def test_padding_ids_are_never_sampled_but_may_be_read() -> None:
    model = tiny_random(seed=8, vocab=700)
    model.tensors["head"][512:] *= 100  # they would win every time
    driver = Driver(model, rows=False)
    params = SamplingParams(temperature=3.0, prompt_logprobs=1)
    seqs = [driver.add([1, 699, 2], params, seed=i) for i in range(8)]
    driver.run(seqs, 8)
    assert all(t < 512 for s in seqs for t in s.output)
    assert seqs[0].prompt_logprobs[0].token == 699
    assert seqs[0].prompt_logprobs[0].logprob == -9999.0


def test_two_steps_may_be_submitted_before_the_first_is_collected() -> None:
    model = tiny_random(seed=9)
    twin = Driver(model, rows=False)
    expected = twin.run([twin.add([4, 5, 6])], 3)[0]
    executor = Driver(model, rows=False).executor
    first = executor.submit(StepPlan(0, [row(1, [4, 5, 6])], [admit(1, [4, 5, 6])]))
    later = [
        executor.submit(StepPlan(s, [row(1, [PENDING], start=2 + s, write_from=2 + s)]))
        for s in (1, 2)
    ]
    tokens = [executor.collect(handle).rows[0].tokens[0] for handle in (first, *later)]
    assert tokens == expected


def test_ended_comes_before_admitted_and_copies_before_writes() -> None:
    model = tiny_random(seed=10)
    driver = Driver(model, rows=True)
    prompt = [4, 5, 6, 7, 8]
    first = driver.executor.submit(StepPlan(0, [row(1, prompt)], [admit(1, prompt)]))
    # The same rid anew, on a copy of block 1, which the plan overwrites in the same step.
    plan = StepPlan(
        1,
        [
            row(2, [9, 9, 9, 9], tables=([1],)),
            row(1, [8], start=4, write_from=4, logits_from=0, tables=([0, 5],)),
        ],
        [admit(1, prompt), admit(2, [9] * 4)],
        ended=[1],
        copies=[Copy(0, 1, 5)],
    )
    second = driver.executor.submit(plan)
    assert second.errors == {}
    assert second.rows[1] == first.rows[0]


@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_the_warm_up_runs_every_kind_of_step_and_leaves_nothing(block_size: int) -> None:
    model = tiny_random(seed=12)
    twin = Driver(model, rows=True, block_size=block_size)
    expected = twin.run([twin.add([4, 5, 6])], 5)
    driver = Driver(model, rows=True, block_size=block_size)
    driver.executor.warm_up()
    assert driver.run([driver.add([4, 5, 6])], 5) == expected


def test_b08_the_warm_up_tells_a_broken_backend_but_not_a_model_that_overflows() -> None:
    model = tiny_random(seed=12)
    model.tensors["embed"][0] = np.nan
    driver = Driver(model, rows=False)
    driver.executor.warm_up()
    assert driver.executor.nonfinite == 0

    class Broken(ReferenceOps):
        def linear(self, x, weight):  # type: ignore[no-untyped-def]
            raise MemoryError

    with pytest.raises(RuntimeError, match="fails on a first step: out of memory"):
        Driver(model, ops=Broken()).executor.warm_up()


def test_what_ended_is_forgotten() -> None:
    driver = Driver(tiny_random(seed=13), rows=False)
    driver.executor.submit(StepPlan(0, [row(1, [4])], [admit(1, [4])]))
    driver.executor.submit(StepPlan(1, ended=[1]))
    after = driver.executor.submit(StepPlan(2, [row(1, [PENDING], start=1)]))
    assert after.errors == {1: "sequence 1 was not admitted"}


def test_load_makes_an_executor_from_a_directory(tmp_path: Path) -> None:
    path = write_tiny_random(tmp_path / "model", "qwen2", 11)
    loaded = load(config(path))
    result = loaded.executor.submit(StepPlan(0, [row(1, [4, 5])], [admit(1, [4, 5])]))
    expected = dense_logits(tiny_random("qwen2", 11), [4, 5])[-1]
    assert result.rows[0].tokens == [int(np.argmax(expected))]
    assert loaded.info.vocab_size == 512
    facts = loaded.describe()
    assert facts["backend"] == "reference"
    assert facts["kv_bytes"] == 32 * 4 * loaded.info.kv_bytes_per_token


def test_the_fingerprint_tells_weights_and_numerics_apart(tmp_path: Path) -> None:
    path = write_tiny_random(tmp_path / "a", "llama", 1)
    same = write_tiny_random(tmp_path / "b", "llama", 1)
    other = write_tiny_random(tmp_path / "c", "llama", 2)
    first = load(config(path)).fingerprint
    assert load(config(same, num_blocks=8, block_size=16, threads=2)).fingerprint == first
    different = {
        load(config(other)).fingerprint,
        load(config(path, row_at_a_time=True)).fingerprint,
    }
    assert len(different | {first}) == 3


def test_b08_load_refuses_what_the_backend_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_random(tmp_path / "model")
    with pytest.raises(ModelError, match=r"'float16'.*takes auto, float32") as raised:
        load(config(path, dtype="float16"))
    assert "--dtype auto" in raised.value.hint
    with pytest.raises(ModelError, match="'tpu'"):
        load(config(path, backend="tpu"))
    monkeypatch.setitem(sys.modules, "octavo.ops.cuda", None)  # as where torch is not installed
    with pytest.raises(ModelError, match="PyTorch") as raised:
        load(config(path, backend="cuda"))
    assert raised.value.code == "backend_missing" and "octavo[gpu]" in raised.value.hint
