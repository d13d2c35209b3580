"""What the fields of a request may hold. A kind checks a JSON value and describes itself as a JSON schema, so that the
description of the API says what is accepted.

`read` gives the value in its one form and raises Wrong; `wanted` is a phrase for errors; `fits` says whether a value is
of the JSON type that the kind takes, by which Either chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from re import escape

from vkprefill.display import printable
from vkprefill.server.api_error import bad_request
from vkprefill.server.protocol.fields import shown

Json = dict[str, object]


class Wrong(Exception):
    """A value that is none of its kind. path: where inside of the field, such as "[0].content"."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def inside(self, step: str) -> Wrong:
        return Wrong(self.message, step + self.path)


class Kind:
    """Base of the kinds."""

    wanted = "a JSON value"

    def fits(self, value: object) -> bool:
        return True

    def schema(self) -> Json:
        return {}

    def read(self, value: object) -> object:
        return value

    def wrong(self, value: object) -> Wrong:
        return Wrong(f"found {shown(value)}, wanted {self.wanted}")


def _given(**limits: float | None) -> Json:
    return {name: limit for name, limit in limits.items() if limit is not None}


class Boolean(Kind):
    wanted = "true or false"

    def fits(self, value: object) -> bool:
        return isinstance(value, bool)

    def schema(self) -> Json:
        return {"type": "boolean"}

    def read(self, value: object) -> bool:
        if not self.fits(value):
            raise self.wrong(value)
        return value


@dataclass(frozen=True)
class Text(Kind):
    """Text of `least` to `most` characters."""

    least: int = 0
    most: int | None = None

    @property
    def wanted(self) -> str:
        return "text" if self.most is None else f"text of {self.least} to {self.most} characters"

    def fits(self, value: object) -> bool:
        return isinstance(value, str)

    def schema(self) -> Json:
        return {"type": "string", **_given(minLength=self.least or None, maxLength=self.most)}

    def read(self, value: object) -> str:
        if not isinstance(value, str) or len(value) < self.least or self.most is not None and len(value) > self.most:
            raise self.wrong(value)
        return value


@dataclass(frozen=True)
class Number(Kind):
    """A number from `least` to `most`; above: more than `least`."""

    least: float | None = None
    most: float | None = None
    above: bool = False

    name = "a number"
    type = "number"

    @property
    def wanted(self) -> str:
        if self.least is None:
            return self.name
        if self.most is None:
            return f"{self.name} of at least {self.least}"
        return f"{self.name} {'above' if self.above else 'from'} {self.least} to {self.most}"

    def fits(self, value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    def schema(self) -> Json:
        least = {"exclusiveMinimum" if self.above else "minimum": self.least}
        return {"type": self.type, **_given(**least, maximum=self.most)}

    def read(self, value: object) -> float | int:
        if not self.fits(value) or not self._in_range(value):
            raise self.wrong(value)
        return value

    def _in_range(self, value: float | int) -> bool:
        low = self.least is None or (value > self.least if self.above else value >= self.least)
        return low and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class Whole(Number):
    """A whole number, 5.0 too."""

    name = "a whole number"
    type = "integer"

    def read(self, value: object) -> int:
        if not self.fits(value) or value != int(value):
            raise self.wrong(value)
        return int(super().read(value))


@dataclass(frozen=True)
class Choice(Kind):
    """One of some values."""

    values: tuple[object, ...]
    note: str = ""

    @property
    def wanted(self) -> str:
        words = [str(value).lower() if isinstance(value, bool) else str(value) for value in self.values]
        spellings: dict[str, str] = {}
        for word in words:
            spellings.setdefault(word.lower(), word)
        return " or ".join(spellings.values())

    def fits(self, value: object) -> bool:
        """Equal, and true is not 1."""
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.values)

    def schema(self) -> Json:
        return {"enum": list(self.values)}

    def read(self, value: object) -> object:
        if not self.fits(value):
            raise Wrong(self.wrong(value).message + self.note)
        return value


@dataclass(frozen=True)
class Neutral(Choice):
    """Of a field that is not done here: the values that ask for nothing. All others are refused."""

    def wrong(self, value: object) -> Wrong:
        return Wrong(f"found {shown(value)}, which is not supported")


@dataclass(frozen=True)
class Items(Kind):
    """A list of `least` to `most` values of a kind."""

    of: Kind
    least: int = 0
    most: int | None = None

    wanted = "a list"

    def fits(self, value: object) -> bool:
        return isinstance(value, list)

    def schema(self) -> Json:
        return {"type": "array", "items": self.of.schema(), **_given(minItems=self.least or None, maxItems=self.most)}

    def read(self, value: object) -> list[object]:
        if not isinstance(value, list):
            raise self.wrong(value)
        if len(value) < self.least or self.most is not None and len(value) > self.most:
            raise Wrong(f"{f'found {len(value)} in it' if value else 'it is empty'}, wanted {self._limits()}")
        done: list[object] = []
        try:
            for item in value:
                done.append(self.of.read(item))
        except Wrong as wrong:
            raise wrong.inside(f"[{len(done)}]") from None
        return done

    def _limits(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        return f"{self.least} to {self.most}" if self.least != self.most else str(self.least)


@dataclass(frozen=True)
class Record(Kind):
    """An object. Fields that are not listed are kept as they are; a listed one that is null is left out, unless it is
    required. more: what the schema says beside; closed: how names begin that must be listed ("": all names)."""

    fields: Mapping[str, Kind] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    more: Json = field(default_factory=dict)
    closed: str | None = None

    wanted = "an object"

    def fits(self, value: object) -> bool:
        return isinstance(value, dict)

    def schema(self) -> Json:
        known = {
            name: kind.schema() if name in self.required else {"anyOf": [kind.schema(), {"type": "null"}]}
            for name, kind in self.fields.items()
        }
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "properties": known, **required, **self._names(), **self.more}

    def _names(self) -> Json:
        """Of the schema: those that a closed object may have."""
        if self.closed is None:
            return {}
        return {"propertyNames": {"anyOf": [{"enum": self._listed()}, {"not": {"pattern": f"^{escape(self.closed)}"}}]}}

    def _listed(self) -> list[str]:
        return [name for name in self.fields if name.startswith(self.closed)]

    def read(self, value: object) -> Json:
        if not isinstance(value, dict):
            raise self.wrong(value)
        done = {}
        for name, one in value.items():
            if name not in self.fields:
                if self.closed is not None and name.startswith(self.closed):
                    raise Wrong(f"not known, wanted one of {', '.join(self._listed())}", f".{printable(name)}")
                done[name] = one
            elif one is not None:
                try:
                    done[name] = self.fields[name].read(one)
                except Wrong as wrong:
                    raise wrong.inside(f".{name}") from None
        for name in self.required:  # after what is there: what an object is says what it needs
            if value.get(name) is None:
                raise Wrong(f"missing, wanted {self.fields[name].wanted}", f".{name}")
        return done


@dataclass(frozen=True)
class Either(Kind):
    """A value of one of several kinds. Of a list or object that one of them alone takes, the error says what is wrong
    inside."""

    kinds: tuple[Kind, ...]
    phrase: str = ""

    @property
    def wanted(self) -> str:
        return self.phrase or " or ".join(kind.wanted for kind in self.kinds)

    def fits(self, value: object) -> bool:
        return any(kind.fits(value) for kind in self.kinds)

    def schema(self) -> Json:
        return {"anyOf": [kind.schema() for kind in self.kinds]}

    def read(self, value: object) -> object:
        kinds = [kind for kind in self.kinds if kind.fits(value)]
        for kind in kinds:
            try:
                return kind.read(value)
            except Wrong:
                if len(kinds) == 1 and isinstance(value, list | dict):
                    raise
        raise self.wrong(value)


@dataclass(frozen=True)
class _Same(Kind):
    """Another kind; only its description differs."""

    label: str
    kind: Kind

    @property
    def wanted(self) -> str:
        return self.kind.wanted

    def fits(self, value: object) -> bool:
        return self.kind.fits(value)

    def read(self, value: object) -> object:
        return self.kind.read(value)


class Named(_Same):
    """A kind that the description has under a name of its own."""

    def schema(self) -> Json:
        return {"$ref": f"#/components/schemas/{self.label}"}


class Noted(_Same):
    """A kind with a sentence on it in the description."""

    def schema(self) -> Json:
        return {**self.kind.schema(), "description": self.label}


class Untouched(Noted):
    """Checked, and passed on as it came, with its nulls."""

    def read(self, value: object) -> object:
        self.kind.read(value)
        return value


def check(table: Record, body: Mapping[str, object]) -> Json:
    """The fields of a request in their one form. ApiError 400 names the field that is wrong, and where in it."""
    try:
        return table.read(body)
    except Wrong as wrong:
        raise bad_request(wrong.path.lstrip("."), wrong.message) from None
