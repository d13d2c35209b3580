"""Parts that a variable of the environment leaves out: its value is on, off or nothing, and no other."""

from __future__ import annotations

import os

from vkprefill.display import quoted
from vkprefill.errors import RequestError

COMPANION, BARRIER = "VKPREFILL_COMPANION", "VKPREFILL_BARRIER"
ON, OFF = ("", "1", "true", "yes", "on"), ("0", "false", "no", "off")


def switched_off(variable: str) -> str:
    """Why the part is left out; empty where it is not. Raises RequestError for a value that is neither."""
    value = os.environ.get(variable, "")
    if value.lower() in OFF:
        return f"switched off by {variable}={value}"
    if value.lower() not in ON:
        raise RequestError(f"{variable}: found {quoted(value)}, wanted 1 or 0 (true or false, yes or no, on or off)")
    return ""
