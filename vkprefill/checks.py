"""Numbers as callers give them, checked before use."""

from __future__ import annotations

from numbers import Integral, Real

from vkprefill.display import quoted
from vkprefill.errors import RequestError

MOST_INTEGER = 2**31 - 1


def check_number(name: str, value: object, kind: type[Integral] | type[Real], least: float, most: float) -> None:
    """RequestError, naming it, for what is not of its kind and in its range; True, False and NaN never are."""
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        what = "a whole number" if kind is Integral else "a number"
        raise RequestError(f"{name}: found {quoted(value)}, wanted {what} from {least} to {most}")
