"""JSON without the extensions of Python's reader: NaN, Infinity, and numbers that overflow to infinity."""

from __future__ import annotations

import json
import math

from vkprefill.display import printable


def loads(text: str) -> object:
    """The value. ValueError for what is no JSON, RecursionError for what is nested too deeply."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{printable(text)} is too large a number")
    return value
