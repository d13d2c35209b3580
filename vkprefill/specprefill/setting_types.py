"""What values a setting may have. A kind checks a value, reads one from the text of a flag or variable, and writes it.

`checked` and `parse` raise ValueError; `read` and `check` turn it into the RequestError that names the setting.
"""

import re
from dataclasses import dataclass
from numbers import Integral, Real

from vkprefill.display import printable
from vkprefill.errors import RequestError


class Kind:
    """Base of the kinds. `wanted` is a phrase for errors, `metavar` stands for the value in a help text."""

    wanted: str
    metavar: str

    def checked(self, value: object) -> object:
        """The value in its one form (int, float, str, bool or tuples of them); ValueError if it is none."""
        raise NotImplementedError

    def parse(self, text: str) -> object:
        """The value that the text stands for, not yet checked; ValueError if it stands for none."""
        raise NotImplementedError

    def text(self, value: object) -> str:
        """The text that `parse` reads the value from."""
        return str(value)


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from `least` to `greatest`."""

    least: int
    greatest: int
    odd: bool = False
    metavar = "N"

    @property
    def wanted(self) -> str:
        return f"{'an odd' if self.odd else 'a'} whole number from {self.least} to {self.greatest}"

    def checked(self, value: object) -> int:
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or not self.least <= value <= self.greatest or (self.odd and value % 2 == 0):
            raise ValueError
        return int(value)

    def parse(self, text: str) -> int:
        if not re.fullmatch("-?[0-9]+", text):
            raise ValueError
        return int(text)


@dataclass(frozen=True)
class Number(Kind):
    """A number from `least` to `greatest`; `note` follows the range in errors."""

    least: float
    greatest: float
    note: str = ""
    metavar = "X"

    @property
    def wanted(self) -> str:
        return f"a number from {self.least:g} to {self.greatest:g}{self.note}"

    def checked(self, value: object) -> float:
        if not isinstance(value, Real) or isinstance(value, bool) or not self.least <= value <= self.greatest:
            raise ValueError
        return float(value)

    def parse(self, text: str) -> float:
        if not re.fullmatch(r"[-+.0-9eE]+", text):  # float() also takes blanks, underscores, nan
            raise ValueError
        return float(text)

    def text(self, value: float) -> str:
        return repr(value).removesuffix(".0")


@dataclass(frozen=True)
class Choice(Kind):
    """One of some words."""

    words: tuple[str, ...]

    @property
    def wanted(self) -> str:
        return " or ".join(self.words)

    @property
    def metavar(self) -> str:
        return "{" + ",".join(self.words) + "}"

    def checked(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError
        return value

    def parse(self, text: str) -> str:
        return text


class Switch(Kind):
    """True or False; in text on/off, true/false, yes/no, 1/0."""

    wanted = "on or off (true or false)"
    metavar = "on|off"
    _words = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}

    def checked(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(self, text: str) -> bool:
        if text.lower() not in self._words:
            raise ValueError
        return self._words[text.lower()]

    def text(self, value: bool) -> str:
        return "on" if value else "off"


@dataclass(frozen=True)
class WholeSet(Kind):
    """One or more whole numbers from `least` to `greatest`, kept as a tuple in rising order, each once."""

    least: int
    greatest: int
    metavar = "N,N,..."

    @property
    def wanted(self) -> str:
        return f"whole numbers from {self.least} to {self.greatest}, such as 3,7"

    def checked(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, tuple | list) or not value:
            raise ValueError
        number = Whole(self.least, self.greatest)
        return tuple(sorted({number.checked(one) for one in value}))

    def parse(self, text: str) -> tuple[int, ...]:
        number = Whole(self.least, self.greatest)
        return tuple(number.parse(one) for one in text.split(","))

    def text(self, value: tuple[int, ...]) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True)
class Ranges(Kind):
    """Half-open ranges (start, end) with 0 <= start < end <= `greatest`, in any order; "none" for no range."""

    greatest: int
    metavar = "START:END,..."

    @property
    def wanted(self) -> str:
        return f"ranges START:END with 0 <= START < END <= {self.greatest}, such as 0:128,512:640, or none"

    def checked(self, value: object) -> tuple[tuple[int, int], ...]:
        if not isinstance(value, tuple | list):
            raise ValueError
        return tuple(self._pair(one) for one in value)

    def _pair(self, value: object) -> tuple[int, int]:
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise ValueError
        start, end = (Whole(0, self.greatest).checked(one) for one in value)
        if start >= end:
            raise ValueError
        return start, end

    def parse(self, text: str) -> tuple[tuple[int, ...], ...]:
        if text == "none":
            return ()
        number = Whole(0, self.greatest)
        return tuple(tuple(number.parse(one) for one in pair.split(":")) for pair in text.split(","))

    def text(self, value: tuple[tuple[int, int], ...]) -> str:
        return ",".join(f"{start}:{end}" for start, end in value) or "none"


@dataclass(frozen=True)
class OrWord(Kind):
    """A word, or a value of another kind."""

    word: str
    kind: Kind

    @property
    def wanted(self) -> str:
        return f"{self.word}, or {self.kind.wanted}"

    @property
    def metavar(self) -> str:
        return f"{self.word}|{self.kind.metavar}"

    def checked(self, value: object) -> object:
        return value if isinstance(value, str) and value == self.word else self.kind.checked(value)

    def parse(self, text: str) -> object:
        return text if text == self.word else self.kind.parse(text)

    def text(self, value: object) -> str:
        return self.word if value == self.word else self.kind.text(value)


class OrNone(OrWord):
    """None, in text a word, or a value of another kind."""

    def checked(self, value: object) -> object:
        return None if value is None or isinstance(value, str) and value == self.word else self.kind.checked(value)

    def parse(self, text: str) -> object:
        return None if text == self.word else self.kind.parse(text)

    def text(self, value: object) -> str:
        return self.word if value is None else self.kind.text(value)


def check(label: str, kind: Kind, value: object) -> object:
    """The value in its one form. RequestError naming `label`, the value and what is wanted if it is not of the kind."""
    try:
        return kind.checked(value)
    except ValueError:
        raise _error(label, kind, value) from None


def read(label: str, kind: Kind, text: str) -> object:
    """The checked value that a flag's or variable's text stands for. RequestError as `check`."""
    try:
        return kind.checked(kind.parse(text))
    except ValueError:
        raise _error(label, kind, text) from None


def _error(label: str, kind: Kind, value: object) -> RequestError:
    return RequestError(f"{label}: found {printable(value) or 'nothing'}, wanted {kind.wanted}")
