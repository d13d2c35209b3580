"""A parser whose help is short, whole with --help-all, and which answers a mistake in two lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

# The ten options that people use first, of each subcommand that has many; the others show all.
FIRST = {
    "generate": "-p -f -n --temp -m -hf -c --device -md --specprefill",
    "chat": "-n -sys --chat-template-kwargs --temp -m -hf -c --device -md --specprefill",
    "serve": "--host --port --api-key -np -m -hf -c --device -md --specprefill",
    "explain": "-p -f --json --html -m -hf --device -md --specprefill-keep-ratio --specprefill-scorer",
    "capture": "-p -f -o --plot --layers --queries -m -hf -c --device",
    "eval": "--lengths --tasks --kinds --file --methods --keep --report -m --device -md",
    "bench": "-p -n -d -r --kernels --json -m -hf --device -md",
}
PROMPT, ANSWER, MODEL = "prompt", "answer", "model"  # titles of groups that several modules add to
EXTRAS = {"server": ("starlette", "uvicorn"), "plots": ("matplotlib",), "ray": ("ray",)}
NATIVE = {"barrier operation": "vkprefill._barrier", "native companion": "vkprefill._companion"}


class Parser(argparse.ArgumentParser):
    """Options are added as to any other."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.register("action", "append", _Append)
        name = self.prog.rpartition(" ")[2]
        self._first = FIRST[name].split() if name in FIRST else None
        if self._first:
            self.add_argument("--help-all", action=_HelpAll, help="show all options and exit")

    def parse_args(self, argv: Sequence[str], namespace: argparse.Namespace) -> argparse.Namespace:  # type: ignore[override]
        """Ends the process with status 2 for a mistake; what the subcommand does not know is its own error."""
        if self.subcommands() and argv and argv[0].startswith("-") and argv[0] not in self.flags():
            self.error(self._unknown(argv[0], self.flags()))
        args, unknown = self.parse_known_args(argv, namespace)
        if unknown:
            self._of(args.command).error(self._unknown(unknown[0], self._of(args.command).flags()))
        return args

    def flags(self) -> list[str]:
        """All of them, long and short."""
        return [flag for action in self._actions for flag in action.option_strings]

    def subcommands(self) -> dict[str, Parser]:
        """Those that were added; none of a subcommand."""
        groups = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return {name: parser for group in groups for name, parser in group.choices.items()}

    def error(self, message: str) -> None:
        """Two lines on stderr, and the end."""
        known = f" ({self.prog} --help lists them)" if self._first or not self.subcommands() else ""
        what = "COMMAND" if self.subcommands() else "[OPTIONS]"
        self.exit(2, f"usage: {self.prog} {what}{known}\n{self.prog}: error: {' '.join(message.split())}\n")

    def format_help(self) -> str:
        """The options used first, where there are many."""
        if not self._first:
            return super().format_help()
        shown = [action for action in self._actions if self._is_first(action)]
        hidden = sum(not self._is_first(action) for action in self._actions)
        formatter = self._get_formatter()
        formatter.add_usage(f"{self.prog} [OPTIONS]", [], [])
        formatter.add_text(self.description)
        for group in self._action_groups:
            chosen = [action for action in group._group_actions if action in shown]
            if chosen:
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(chosen)
                formatter.end_section()
        formatter.add_text(f"{hidden} more options: {self.prog} --help-all")
        return formatter.format_help()

    def format_all(self) -> str:
        return super().format_help()

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(self._unknown(str(value), action.choices, "command"))
        super()._check_value(action, value)

    def _is_first(self, action: argparse.Action) -> bool:
        always = isinstance(action, argparse._HelpAction | _HelpAll) or not action.option_strings
        return always or any(flag in self._first for flag in action.option_strings)

    def _of(self, command: str | None) -> Parser:
        return self.subcommands().get(command, self)

    @staticmethod
    def _unknown(found: str, known: Iterable[str], what: str = "option") -> str:
        name = found.partition("=")[0]
        near = get_close_matches(name, list(known), n=1)
        if what == "option" and not name.startswith("-"):
            return f"{found}: not expected here"
        return f"{name}: no such {what}" + (f"; did you mean {near[0]}?" if near else "")


class _Append(argparse._AppendAction):
    """The first value takes the place of the default, which may be a variable's."""

    def __call__(
        self, parser: Parser, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is self.default:
            setattr(namespace, self.dest, [])
        super().__call__(parser, namespace, values, option_string)


def group_of(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """The group of this title, made where there is none."""
    groups = (group for group in parser._action_groups if group.title == title)
    return next(groups, None) or parser.add_argument_group(title)


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: Parser, *_: object) -> None:
        parser._print_message(parser.format_all(), sys.stdout)
        parser.exit()


class Version(argparse.Action):
    """--version: the version, and what this installation has; no device is opened."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show the version and its parts, and exit")

    def __call__(self, parser: Parser, *_: object) -> None:
        parser._print_message(f"vkprefill {version('vkprefill')}\n{features()}\n", sys.stdout)
        parser.exit()


def features() -> str:
    """kp, the native modules and the extras: which are there, and which not."""
    there, lacking = [], []
    try:
        there.append(f"kp {version('kp')}")
    except PackageNotFoundError:
        lacking.append("kp")
    for name, module in NATIVE.items():
        (there if find_spec(module) else lacking).append(name)
    for name, modules in EXTRAS.items():
        (there if all(map(find_spec, modules)) else lacking).append(f"extra {name}")
    return f"with {', '.join(there) or 'nothing'}" + (f"; without {', '.join(lacking)}" if lacking else "")
