"""The kinds of values that options take: how each is read from text or from a file, and shown.

Owns: parsing and limits. `parse` raises ValueError with the limit in words ("must be ...").
Does not know: the names of options or where a value came from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}


class Kind(Protocol):
    """How one option's value is read."""

    @property
    def metavar(self) -> str: ...

    def parse(self, raw: object) -> Any:
        """The value, from text (flag, environment) or from a file's own types."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """Free text, or one of `choices`."""

    choices: tuple[str, ...] = ()
    metavar: str = "TEXT"

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or not raw.strip():
            raise ValueError("must be text that is not empty")
        if self.choices and raw not in self.choices:
            raise ValueError("must be one of " + ", ".join(self.choices))
        return raw


@dataclass(frozen=True, slots=True)
class Integer:
    low: int | None = None
    high: int | None = None
    metavar: str = "INTEGER"

    def parse(self, raw: object) -> int:
        limit = f"must be a whole number{_range(self.low, self.high)}"
        value = raw
        if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9][0-9_]*", raw.strip()):
            value = int(raw.replace("_", ""))
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(limit)
        if (self.low is not None and value < self.low) or (
            self.high is not None and value > self.high
        ):
            raise ValueError(limit)
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number; `above` excludes its own value."""

    above: float | None = None
    low: float | None = None
    high: float | None = None
    metavar: str = "NUMBER"

    def parse(self, raw: object) -> float:
        limit = "must be a number"
        if self.above is not None:
            limit += f" above {self.above:g}"
            limit += f" and at most {self.high:g}" if self.high is not None else ""
        else:
            limit += _range(self.low, self.high)
        try:
            if isinstance(raw, bool) or not isinstance(raw, str | int | float):
                raise ValueError(limit)
            value = float(raw)
        except (ValueError, OverflowError):
            raise ValueError(limit) from None
        inside = (
            value - value == 0.0
            and (self.above is None or value > self.above)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )
        if not inside:
            raise ValueError(limit)
        return value


@dataclass(frozen=True, slots=True)
class Target:
    """Milliseconds, or "on" for `default`."""

    default: float
    metavar: str = "MS|on"

    def parse(self, raw: object) -> float:
        if isinstance(raw, str) and raw.strip().lower() == "on":
            return self.default
        try:
            return Number(above=0, high=86_400_000).parse(raw)
        except ValueError as error:
            raise ValueError(f"{error}, or on") from None


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    metavar: str = ""

    def parse(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        word = raw.strip().lower() if isinstance(raw, str) else ""
        if word in {"1", "true", "yes", "on"}:
            return True
        if word in {"0", "false", "no", "off"}:
            return False
        raise ValueError("must be true or false")


@dataclass(frozen=True, slots=True)
class Bytes:
    """A number of bytes: 1073741824, 1GiB, 1G (the same) or 1GB (10**9)."""

    low: int = 1
    metavar: str = "BYTES"

    def parse(self, raw: object) -> int:
        value: float | None = None
        if isinstance(raw, int) and not isinstance(raw, bool):
            value = raw
        elif isinstance(raw, str):
            match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", raw.strip().lower())
            if match and match[2] in _UNITS:
                number = float(match[1]) if "." in match[1] else int(match[1])
                value = number * _UNITS[match[2]]
        if value is None or value < self.low:
            raise ValueError(f"must be a number of bytes from {self.low}, such as 4GiB or 512MiB")
        return int(value)


@dataclass(frozen=True, slots=True)
class Names:
    """A list of texts; in one text they are separated by commas."""

    metavar: str = "TEXT"

    def parse(self, raw: object) -> tuple[str, ...]:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise ValueError("must be a list of texts")
        return tuple(part.strip() for part in parts if part.strip())


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}" if high < 1e6 else f" from {low:g} to {high}"
    if low is not None:
        return f" of at least {low:g}"
    return f" of at most {high:g}" if high is not None else ""
