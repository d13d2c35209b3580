"""A variable of the environment for every option of a subcommand: VKPREFILL_CTX_SIZE is --ctx-size. A flag beats it.

Variables are put in place of defaults before the command line is read, so each is checked as its flag is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from difflib import get_close_matches

from vkprefill.cli.parser import Parser
from vkprefill.display import printable, quoted
from vkprefill.hub.places import FOLDERS
from vkprefill.vulkan.switches import BARRIER, COMPANION, OFF, ON

PREFIX = "VKPREFILL_"
OTHERS = (FOLDERS, COMPANION, BARRIER)  # variables with the prefix that are no option's
RULE = (
    f"Every option may be given as a variable of the environment too, which a flag beats: {PREFIX}CTX_SIZE is "
    "--ctx-size; 1 or 0 for what is on or off, commas between the values of what may be repeated."
)
FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def variable_of(action: argparse.Action) -> str | None:
    """The variable of an option; None for those that only print something."""
    if argparse.SUPPRESS in (action.dest, action.default):
        return None
    name = next(flag for flag in action.option_strings if flag.startswith("--"))
    return PREFIX + name.removeprefix("--").replace("-", "_").upper()


def take_variables(parser: Parser, env: Mapping[str, str]) -> dict[str, argparse.Action]:
    """Put the values of those that are set in place of the options' defaults. Returns the options, by variable.

    Ends the process with status 2 for a value that is none of its option's.
    """
    taken = {}
    for action in parser._actions:
        variable = variable_of(action)
        if variable is None or variable not in env:
            continue
        try:
            action.default = _value(parser, action, env[variable])
        except argparse.ArgumentError as error:
            parser.error(f"{variable}: {error.message}")
        taken[variable] = action
    return taken


def unknown_variables(parser: Parser, env: Mapping[str, str]) -> list[str]:
    """A line for each variable that looks like an option's and is none."""
    known = {*filter(None, map(variable_of, parser._actions)), *OTHERS}
    unknown = {
        name: get_close_matches(name, known, 1, 0)[0]
        for name in sorted(env)
        if name.startswith(PREFIX) and name not in known
    }
    return [
        f"{printable(name)}: not used, no variable has this name; the nearest is {near}"
        for name, near in unknown.items()
    ]


def named_by_variable(text: str, taken: Mapping[str, argparse.Action], args: argparse.Namespace) -> str:
    """An error's text, with the variable in place of a flag where it was the variable that gave the value."""
    names = {
        flag: variable
        for variable, action in taken.items()
        if getattr(args, action.dest, None) is action.default
        for flag in action.option_strings
    }
    return FLAG.sub(lambda found: names.get(found[0], found[0]), text)


def _value(parser: Parser, action: argparse.Action, text: str) -> object:
    if action.nargs == 0:
        if text.lower() not in (*ON[1:], *OFF):
            raise argparse.ArgumentError(action, f"found {quoted(text)}, wanted 1 or 0")
        return text.lower() in ON
    texts = text.split(",") if isinstance(action, argparse._AppendAction) else [text]
    values = [parser._get_value(action, one) for one in texts]
    for value in values:
        parser._check_value(action, value)
    return values if isinstance(action, argparse._AppendAction) else values[0]
