"""Stop strings across pieces of any size."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.text.stop import StopStrings


def feed(stops: list[str], pieces: Iterable[str], include: bool = False) -> tuple[str, str | None]:
    watcher = StopStrings(stops, include)
    sent = ""
    for piece in pieces:
        text, matched = watcher.push(piece)
        sent += text
        if matched is not None:
            return sent, matched
    return sent + watcher.finish(), None


def expected(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """The plain definition: the match that is complete first, of those the longest."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end if include else end - len(stop)], stop


def test_a01_stop_string_over_many_tokens_does_not_leak() -> None:
    watcher = StopStrings(["DEFGHIJ"])
    for piece in ("DEF", "G", "HI"):
        assert watcher.push(piece) == ("", None)
    assert watcher.push("J") == ("", "DEFGHIJ")
    assert feed(["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "KLM"]) == ("ABC", "DEFGHIJ")
    assert feed(["DEFGHIJ"], ["ABC", "DEF", "GHIJKLM"], include=True) == ("ABCDEFGHIJ", "DEFGHIJ")


def test_a01_earliest_match_wins_whatever_the_order() -> None:
    for stops in (["def", "b"], ["b", "def"]):
        assert feed(stops, ["abcdef"]) == ("a", "b")


def test_only_what_may_begin_a_stop_is_held() -> None:
    watcher = StopStrings(["\n\nUser:", "###"])
    assert watcher.push("Hello\n") == ("Hello", None)
    assert watcher.push("there ##") == ("\nthere ", None)
    assert watcher.push(" not") == ("## not", None)
    assert watcher.finish() == ""


def test_held_text_is_flushed_at_the_end() -> None:
    assert feed(["END"], ["the EN"]) == ("the EN", None)


def test_overlapping_beginnings() -> None:
    assert feed(["aab"], "aaab") == ("a", "aab")
    assert feed(["abab!"], "abababab!") == ("abab", "abab!")


def test_unarmed_matches_pass_but_beginnings_stay_held() -> None:
    watcher = StopStrings(["ab"])
    assert watcher.push("xab", armed=False) == ("xab", None)
    assert watcher.push("a", armed=False) == ("", None)
    assert watcher.push("b") == ("", "ab")


ALPHABET = st.text("ab", min_size=0, max_size=30)


@pytest.mark.parametrize("include", [False, True])
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=6), max_size=4),
    pieces=st.lists(ALPHABET, max_size=8),
)
@example(stops=["abb", "b"], pieces=["aabb"])
def test_a01_any_cut_gives_the_same(stops: list[str], pieces: list[str], include: bool) -> None:
    text = "".join(pieces)
    want = expected(stops, text, include)
    assert feed(stops, pieces, include) == want
    assert feed(stops, text, include) == want
    assert feed(stops, [text], include) == want


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3),
    text=st.text("abcd", max_size=40),
)
def test_never_sends_what_could_still_be_a_stop(stops: list[str], text: str) -> None:
    watcher = StopStrings(stops)
    sent = ""
    for i, char in enumerate(text):
        safe, matched = watcher.push(char)
        sent += safe
        if matched:
            return
        held = text[len(sent) : i + 1]
        assert text[: i + 1] == sent + held
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text[: i + 1].endswith(stop[:n])),
            default=0,
        )
        assert len(held) == longest


def test_cost_does_not_grow_with_what_is_held() -> None:
    """An adversarial stop string: each step looks at a bounded number of characters on average."""
    size = 1000
    watcher = StopStrings(["a" * size + "b"] * 16)
    for _ in range(20_000):
        text, matched = watcher.push("a")
        assert matched is None
        assert len(text) <= 1
    assert watcher.finish() == "a" * size
