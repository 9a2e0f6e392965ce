"""Stop strings: finds them across tokens and holds back what may be the beginning of one.

Owns: `StopStrings`: the text that may be sent, and the first match.
Does not know: tokens, requests, or why a text ends otherwise.

The stop string that is complete first wins, and of several that end together the longest. That is
the only order that does not depend on how the text was cut into pieces (case A01). Each string has
its own Knuth-Morris-Pratt automaton, so a character costs a constant amount per stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Watches one text for `stops`. With `include` a match is part of the text, else not."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in dict.fromkeys(stops)]
        self._first_chars = {stop[0] for stop in stops}
        self._include = include
        self._held = ""

    def push(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """(text that is safe to send, the stop string that is complete now or None).

        After a match the rest of the text is dropped and nothing may be pushed any more. Unless
        `armed`, complete matches are passed over (min_tokens) but a beginning is still held back.
        """
        matchers = self._matchers
        if not self._held and self._first_chars.isdisjoint(text):
            return text, None
        buffer = self._held + text
        for end in range(len(self._held), len(buffer)):
            char = buffer[end]
            matched = ""
            for matcher in matchers:
                if matcher.step(char) and len(matcher.stop) > len(matched):
                    matched = matcher.stop
            if matched and armed:
                self._held = ""
                return buffer[: end + 1 if self._include else end + 1 - len(matched)], matched
        # A complete but unarmed match holds nothing back by itself: only what may still become one.
        hold = max(matcher.pending() for matcher in matchers)
        cut = len(buffer) - hold
        self._held = buffer[cut:]
        return buffer[:cut], None

    def finish(self) -> str:
        """The text held back, when no more will come."""
        text, self._held = self._held, ""
        return text


class _Matcher:
    """Knuth-Morris-Pratt: `state` is how much of `stop` the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        self._fallback = [0] * (len(stop) + 1)
        longest = 0
        for i in range(1, len(stop)):
            while longest and stop[i] != stop[longest]:
                longest = self._fallback[longest]
            if stop[i] == stop[longest]:
                longest += 1
            self._fallback[i + 1] = longest

    def step(self, char: str) -> bool:
        """Takes one character; True if the stop string ends with it."""
        state = self.pending()
        while state and char != self.stop[state]:
            state = self._fallback[state]
        self.state = state + 1 if char == self.stop[state] else 0
        return self.state == len(self.stop)

    def pending(self) -> int:
        """How many of the latest characters may be the beginning of the stop string."""
        return self._fallback[self.state] if self.state == len(self.stop) else self.state
