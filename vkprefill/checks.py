"""Numbers as callers give them, checked before use."""

from __future__ import annotations

from numbers import Integral, Real

from vkprefill.display import quoted
from vkprefill.errors import RequestError

MOST_INTEGER = 2**31 - 1


def check_number(name: str, value: object, kind: type[Integral] | type[Real], least: float, most: float) -> None:
    """RequestError, naming it, for what is not of its kind and in its range; True, False and NaN never are."""
    if not in_range(value, kind, least, most):
        raise RequestError(f"{name}: found {quoted(value)}, wanted {range_in_words(kind, least, most)}")


def in_range(value: object, kind: type[Integral] | type[Real], least: float, most: float) -> bool:
    """True, False and NaN never are."""
    return isinstance(value, kind) and not isinstance(value, bool) and bool(least <= value <= most)


def range_in_words(kind: type[Integral] | type[Real], least: float, most: float) -> str:
    return f"{'a whole number' if kind is Integral else 'a number'} from {least} to {most}"
