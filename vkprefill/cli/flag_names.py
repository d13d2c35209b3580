"""Errors name what the user typed: the flag or variable of a setting, where they begin with the setting's name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from vkprefill.cli.specprefill_options import asked_by
from vkprefill.generation.sampling import LIMITS
from vkprefill.specprefill.unused import ALL

SHORT = {"temperature": "temp"}  # destinations of flags that are no field's name


def named_as_asked(args: argparse.Namespace, error: Exception, env: Mapping[str, str] = os.environ) -> str:
    """The error's text; the name that it begins with is the flag or variable that the value was given by, if it was."""
    name, *rest = str(error).split(":", 1)
    asked = None
    if name in LIMITS:
        dest = SHORT.get(name, name)
        asked = f"--{dest.replace('_', '-')}" if getattr(args, dest, None) is not None else None
    elif name in ALL and "specprefill_defaults" in args:
        asked = asked_by(args, name, env)
    return ":".join([asked or name, *rest])
