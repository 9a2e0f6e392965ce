"""The library in the own process: LLM and LLMEngine on tiny models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import octavo
import octavo.engine
from octavo import LLM, LLMEngine, SamplingParams
from octavo.config import ConfigError
from octavo.core.params import ParamError
from octavo.core.request import FinishReason, Refused
from octavo.engine.choices import best_choices
from support.tiny_models import tiny_random, write_chain, write_loop

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SMALL = {"kv_tokens": 2048, "max_model_len": 256}


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """Says "Hello, world" and ends."""
    return LLM(str(write_chain(tmp_path_factory.mktemp("chain"), "Helo, wrd!")), **SMALL)


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(tiny_random(seed=2).write(tmp_path_factory.mktemp("random"))), **SMALL)


def test_generate_answers_in_the_order_of_the_prompts(chain: LLM) -> None:
    prompts = ["Hi", [3, 4, 5], "again"]
    results = chain.generate(prompts, GREEDY, progress=False)
    assert [result.prompt for result in results] == ["Hi", None, "again"]
    for result in results:
        assert result.finished
        answer = result.outputs[0]
        assert answer.text == "Helo, wrd!"
        assert answer.finish_reason is FinishReason.STOP
        assert answer.cumulative_logprob is None and answer.logprobs is None
    assert results[1].prompt_token_ids == [3, 4, 5]


def test_one_prompt_may_be_given_alone(chain: LLM) -> None:
    assert len(chain.generate("Hi", GREEDY, progress=False)) == 1
    assert len(chain.generate([3, 4], GREEDY, progress=False)) == 1
    assert chain.generate([], GREEDY, progress=False) == []


def test_a_stop_string_ends_the_answer_and_the_work(chain: LLM) -> None:
    stop = SamplingParams(temperature=0.0, max_tokens=12, stop=(", w",))
    result = chain.generate("Hi", stop, progress=False)[0]
    answer = result.outputs[0]
    assert (answer.text, answer.stop_reason) == ("Helo", ", w")
    assert answer.finish_reason is FinishReason.STOP
    assert not chain.engine.has_unfinished_requests()


def test_chat_renders_the_template(chain: LLM) -> None:
    message = {"role": "user", "content": "Hi"}
    one = chain.chat([message], GREEDY, progress=False)
    two = chain.chat([[message], [message, {"role": "assistant", "content": "?"}, message]], GREEDY,
                     progress=False)  # fmt: skip
    assert [len(one), len(two)] == [1, 2]
    assert one[0].outputs[0].text == "Helo, wrd!"
    rendered = chain.engine.prepared.template().render([message])
    assert one[0].prompt_token_ids == chain.tokenizer.encode(rendered, add_special_tokens=False)


def test_best_of_returns_the_likeliest_with_logprobs(random: LLM) -> None:
    params = SamplingParams(n=2, best_of=5, seed=3, max_tokens=8, logprobs=1, prompt_logprobs=1)
    result = random.generate([list(range(5, 15))], params, progress=False)[0]
    assert [answer.index for answer in result.outputs] == [0, 1]
    first, second = result.outputs
    assert first.cumulative_logprob is not None and second.cumulative_logprob is not None
    assert first.cumulative_logprob >= second.cumulative_logprob
    every = SamplingParams(n=5, seed=3, max_tokens=8, logprobs=1)
    all_five = random.generate([list(range(5, 15))], every, progress=False)[0].outputs
    ranked = sorted(all_five, key=lambda answer: -(answer.cumulative_logprob or 0.0))
    assert [answer.token_ids for answer in ranked[:2]] == [first.token_ids, second.token_ids]
    assert first.logprobs is not None
    assert [entry.token for entry in first.logprobs] == first.token_ids
    assert sum(entry.logprob for entry in first.logprobs) == pytest.approx(first.cumulative_logprob)
    scored = result.prompt_logprobs
    assert scored is not None and scored[0] is None
    assert [entry.token for entry in scored[1:] if entry is not None] == list(range(6, 15))


def test_best_choices_are_stable() -> None:
    assert best_choices([-3.0, -1.0, -2.0, -1.0], 2) == [1, 3]
    assert best_choices([-3.0, -1.0], 2) == [0, 1]


def test_a_bad_prompt_is_refused_before_anything_runs(random: LLM) -> None:
    with pytest.raises(Refused):
        random.generate([[1, 2], [10**6]], GREEDY, progress=False)
    assert not random.engine.has_unfinished_requests()
    assert len(random.generate([[1, 2]], GREEDY, progress=False)[0].outputs[0].token_ids) == 12
    with pytest.raises(ValueError, match="1 sampling_params for 2 prompts"):
        random.generate([[1], [2]], [GREEDY], progress=False)


@pytest.mark.parametrize("token", [-1, 512, 2**63, 10**30, 1.5, True, "a", None])
def test_a13_bad_ids_are_refused_by_name(random: LLM, token: object) -> None:
    with pytest.raises(Refused) as error:
        random.engine.add_request("bad", [1, token], GREEDY)  # type: ignore[list-item]
    assert error.value.param == "prompt"
    assert not random.engine.has_unfinished_requests()
    random.engine.add_request("bad", [1, 2], GREEDY)  # the name is still free
    random.engine.abort_request("bad")


def test_prompts_of_two_kinds_are_refused(random: LLM) -> None:
    for prompts in ([1, "a"], ["a", 1], [1, [2]]):
        with pytest.raises(ParamError, match="prompts must be"):
            random.generate(prompts, GREEDY, progress=False)  # type: ignore[arg-type]


def test_one_stop_string_may_be_given_alone(chain: LLM) -> None:
    """It is one string, not one a character."""
    params = SamplingParams(temperature=0.0, max_tokens=12, stop=", w")  # type: ignore[arg-type]
    answer = chain.generate("Hi", params, progress=False)[0].outputs[0]
    assert (answer.text, answer.stop_reason) == ("Helo", ", w")


def test_the_progress_bar_counts_prompts_and_tokens(
    chain: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    chain.generate(["a", "b"], GREEDY)
    assert "2/2" in capsys.readouterr().out


def test_llm_engine_steps_add_and_abort(tmp_path: Path) -> None:
    engine = octavo.engine.LLMEngine(str(write_loop(tmp_path)), **SMALL)
    assert isinstance(engine, LLMEngine)
    endless = SamplingParams(temperature=0.0, max_tokens=100)
    engine.add_request("a", [7], endless)
    engine.add_request("b", [8], endless)
    with pytest.raises(ParamError, match="in use"):
        engine.add_request("a", [9], endless)
    seen = [output for _ in range(5) for output in engine.step()]
    growing = [output.outputs[0].token_ids for output in seen if output.request_id == "a"]
    assert growing == [[7] * (i + 1) for i in range(len(growing))]
    engine.abort_request("a")
    engine.abort_request("a")
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.request_id == "b"
    assert output.finished and len(output.outputs[0].token_ids) == 100


def test_unknown_options_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_ln"):
        LLM(str(tmp_path), max_model_ln=5)


def test_importing_octavo_is_light() -> None:
    check = (
        "import sys, octavo, octavo.engine, octavo.engine.messages\n"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'rich', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from octavo.engine.client import AsyncEngine\n"
        "assert 'numpy' not in sys.modules\n"
        "try: octavo.Nothing\n"
        "except AttributeError: pass\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
