"""One choice's text: stop strings, special tokens, logprobs, the end."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.params import SamplingParams
from octavo.core.plan import TokenLogprob
from octavo.core.request import FinishReason, Output
from octavo.text.output import ChoiceText, TextDelta
from octavo.text.tokenizer import Tokenizer
from support.text_tokenizers import byte_level, sentencepiece

BYTES = byte_level()
PIECES = sentencepiece()
IM_END = BYTES.special_tokens["<|im_end|>"]


def choice(stop: tuple[str, ...] = (), tokenizer: Tokenizer = BYTES, **fields: Any) -> ChoiceText:
    return ChoiceText(tokenizer, SamplingParams(stop=stop, **fields))


def output(tokens: list[int], reason: FinishReason | None = None, **fields: Any) -> Output:
    return Output("r", 0, tokens=tokens, finish_reason=reason, **fields)


def ids(text: str) -> list[int]:
    return BYTES.encode(text, add_special_tokens=False)


def run(text: ChoiceText, tokens: list[int], reason: FinishReason) -> tuple[str, TextDelta]:
    """Pushes token by token; returns the whole text and the last delta."""
    sent = ""
    for token in tokens:
        delta = text.push(output([token]))
        sent += delta.text
        if delta.finish_reason is not None:
            return sent, delta
    delta = text.push(output([], reason))
    return sent + delta.text, delta


def test_a01_stop_string_over_tokens() -> None:
    tokens = [*ids("DEF"), *ids("G"), *ids("HI"), *ids("J"), *ids("KLM")]
    text = choice(("DEFGHIJ",))
    sent, delta = run(text, tokens, FinishReason.LENGTH)
    assert sent == ""
    assert (delta.finish_reason, delta.stop_reason) == (FinishReason.STOP, "DEFGHIJ")
    assert delta.abort
    assert text.token_count == 4
    sent, _ = run(choice(("DEFGHIJ",), include_stop_str_in_output=True), tokens, FinishReason.STOP)
    assert sent == "DEFGHIJ"


def test_a01_tokens_after_the_match_are_dropped() -> None:
    text = choice(("\n\n",))
    tokens = [*ids("hello"), *ids("\n\n"), *ids("more")]
    scored = [TokenLogprob(token, -1.0, 1, []) for token in tokens]
    delta = text.push(output(tokens, FinishReason.LENGTH, logprobs=scored))
    assert delta.text == "hello"
    assert delta.tokens == tokens[:2]
    assert delta.logprobs is not None and len(delta.logprobs) == 2
    assert text.token_count == 2
    assert delta.finish_reason is FinishReason.STOP
    assert not delta.abort  # the engine had finished by itself


def test_after_the_end_everything_is_ignored() -> None:
    text = choice(("STOP",))
    assert text.push(output(ids("STOP"))).abort
    late = text.push(output(ids("x"), FinishReason.ABORT))
    assert late == TextDelta()
    assert text.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR])
def test_held_text_is_flushed_at_the_end(reason: FinishReason) -> None:
    text = choice(("STOPPED",))
    assert text.push(output(ids("the STOP"))).text == "the "
    delta = text.push(output([0xE6], reason))
    assert delta.text == "STOP\ufffd"
    assert delta.finish_reason is reason


def test_a03_no_replacement_characters_on_the_way() -> None:
    text = choice()
    parts = [text.push(output([byte])).text for byte in "Hi 😀 日本 é".encode()]
    assert "".join(parts) == "Hi 😀 日本 é"
    assert not any("\ufffd" in part for part in parts)


class TestLastToken:
    """What the token that ended the text contributes."""

    def test_eos_has_no_text(self) -> None:
        for skip in (True, False):
            text = choice(skip_special_tokens=skip)
            delta = text.push(output([*ids("hello"), IM_END], FinishReason.STOP))
            assert delta.text == "hello"
            assert delta.tokens[-1] == IM_END
            assert text.token_count == 2
            assert delta.stop_reason is None

    def test_stop_token_id_has_no_text_unless_asked(self) -> None:
        [the] = ids("the")
        tokens = [*ids("hello"), the]
        ended = output(tokens, FinishReason.STOP, stop_reason=the)
        delta = choice(stop_token_ids=(the,)).push(ended)
        assert (delta.text, delta.stop_reason) == ("hello", the)
        fields = {"stop_token_ids": (the,), "include_stop_str_in_output": True}
        assert choice(**fields).push(ended).text == "hellothe"

    def test_length_keeps_the_last_token(self) -> None:
        assert choice().push(output(ids("hello the"), FinishReason.LENGTH)).text == "hello the"


class TestSpecialTokens:
    """Case A24."""

    def tokens(self) -> list[int]:
        think = [BYTES.token_id(text) or 0 for text in ("<think>", "</think>")]
        return [think[0], *ids("ok"), think[1], *ids("1"), IM_END]

    @pytest.mark.parametrize("skip", [True, False])
    def test_a24_text_equals_decode(self, skip: bool) -> None:
        sent, _ = run(choice(skip_special_tokens=skip), self.tokens(), FinishReason.LENGTH)
        assert sent == BYTES.decode(self.tokens(), skip)

    @pytest.mark.parametrize("skip", [True, False])
    def test_a24_stop_on_a_special_tokens_text(self, skip: bool) -> None:
        text = choice(("<|im_end|>",), skip_special_tokens=skip)
        sent, delta = run(text, [*self.tokens(), *ids("x")], FinishReason.LENGTH)
        assert sent == "<think>ok</think>1"
        assert delta.stop_reason == "<|im_end|>"
        assert delta.abort

    def test_a24_included_when_asked(self) -> None:
        text = choice(("<|im_end|>",), include_stop_str_in_output=True)
        sent, _ = run(text, self.tokens(), FinishReason.LENGTH)
        assert sent == "<think>ok</think>1<|im_end|>"

    def test_a24_held_text_comes_before_it(self) -> None:
        sent, _ = run(choice(("okay", "<|im_end|>")), [*ids("ok"), IM_END], FinishReason.LENGTH)
        assert sent == "ok"


def test_min_tokens_passes_over_early_stops() -> None:
    tokens = ids("aXbXc")
    sent, delta = run(choice(("X",), min_tokens=2), tokens, FinishReason.LENGTH)
    assert (sent, delta.stop_reason) == ("aXb", "X")
    sent, _ = run(choice(("X",), min_tokens=4), tokens, FinishReason.LENGTH)
    assert sent == "aXbXc"
    sent, _ = run(choice(("<|im_end|>",), min_tokens=3), [IM_END, *tokens], FinishReason.LENGTH)
    assert sent == "aXbXc"


def test_a03_logprobs_carry_raw_bytes_and_offsets() -> None:
    text = choice(logprobs=1)
    tokens = [*ids("é"), ord("x"), *"日".encode(), ord("y")]
    scored = [TokenLogprob(token, -0.5, 1, [(token, -0.5), (0xE6, -2.0)]) for token in tokens]
    delta = text.push(output(tokens, FinishReason.LENGTH, logprobs=scored))
    assert delta.logprobs is not None
    assert [entry.raw for entry in delta.logprobs] == [
        "é".encode(),
        b"x",
        b"\xe6",
        b"\x97",
        b"\xa5",
        b"y",
    ]
    assert [entry.text_offset for entry in delta.logprobs] == [0, 1, 2, 2, 2, 3]
    assert delta.logprobs[0].text == "é"
    assert delta.logprobs[2].text == "\ufffd"
    assert delta.logprobs[1].top[1].raw == b"\xe6"
    assert delta.text == "éx日y"


def test_offsets_count_text_that_a_stop_string_holds_back() -> None:
    text = choice(("xyz",), logprobs=0)
    tokens = ids("axy!")
    scored = [TokenLogprob(token, -0.5, 1, []) for token in tokens]
    delta = text.push(output(tokens, FinishReason.LENGTH, logprobs=scored))
    assert delta.logprobs is not None
    assert [entry.text_offset for entry in delta.logprobs] == [0, 1, 2, 3]


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])
@given(data=st.data())
def test_any_grouping_of_tokens_gives_the_same(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """One push or many: text, tokens and end are those of the sequence alone."""
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    stops = data.draw(st.lists(st.sampled_from(["STOP", " world", "日", "HI", "a", "</s>"])))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(tokens)))))
    reason = data.draw(st.sampled_from([FinishReason.LENGTH, FinishReason.STOP]))
    fields = {
        "min_tokens": data.draw(st.integers(0, 4)),
        "skip_special_tokens": data.draw(st.booleans()),
        "include_stop_str_in_output": data.draw(st.booleans()),
    }

    def replay(cuts: list[int]) -> tuple[str, list[int], object, object]:
        text = choice(tuple(stops), tokenizer, **fields)
        sent, counted, end, why = "", [], None, None
        edges = [0, *cuts, len(tokens)]
        for i, (start, stop) in enumerate(itertools.pairwise(edges)):
            last = i == len(edges) - 2
            delta = text.push(output(tokens[start:stop], reason if last else None))
            sent += delta.text
            counted += delta.tokens
            end, why = delta.finish_reason or end, delta.stop_reason or why
        assert text.token_count == len(counted)
        return sent, counted, end, why

    # The engine reports the token that ended a text together with the end.
    cuts = [cut for cut in cuts if cut < len(tokens)]
    each = list(range(1, len(tokens)))
    assert replay(cuts) == replay([]) == replay(each)
