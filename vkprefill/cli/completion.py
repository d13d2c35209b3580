"""vkprefill completion: what a shell needs to complete subcommands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from shlex import quote

from vkprefill.cli.parser import Parser

DESCRIPTION = """Print a script that completes vkprefill's command line. For good: bash, into
~/.local/share/bash-completion/completions/vkprefill; zsh, into a folder of $fpath as _vkprefill; fish, into
~/.config/fish/completions/vkprefill.fish. For this shell alone: source <(vkprefill completion bash), or
vkprefill completion fish | source."""
FILES = ("FILE", "FOLDER")  # in the metavar of what takes a path


@dataclass(frozen=True)
class Option:
    """flags: its spellings; values: what may follow; takes_value: whether any does; takes_file: whether a path."""

    flags: tuple[str, ...]
    text: str
    takes_value: bool
    takes_file: bool
    values: tuple[str, ...]


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser("completion", help="print a script for a shell", description=DESCRIPTION)
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell that the script is for")
    parser.set_defaults(run=run, subcommands=subcommands)


def run(args: argparse.Namespace) -> int:
    texts = {choice.dest: choice.help or "" for choice in args.subcommands._choices_actions}
    parsers = args.subcommands.choices.items()
    commands = {name: (texts[name], options_of(parser)) for name, parser in parsers}
    print("\n".join(SCRIPTS[args.shell](commands)))
    return 0


def options_of(parser: Parser) -> list[Option]:
    return [_option(action) for action in parser._actions if action.option_strings or action.choices]


def _option(action: argparse.Action) -> Option:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    text = "" if action.help in (None, argparse.SUPPRESS) else " ".join(action.help.split()).replace("%%", "%")
    return Option(
        tuple(action.option_strings),
        text.split(" (default:")[0].split(";")[0][:80],
        action.nargs != 0 and bool(action.option_strings),
        any(word in metavar for word in FILES),
        tuple(map(str, action.choices or ())),
    )


Commands = dict[str, tuple[str, list[Option]]]


def _bash(commands: Commands) -> Iterator[str]:
    yield "_vkprefill() {"
    yield "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}"
    yield f"    local words={quote(' '.join((*commands, '--help', '--version')))}"
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then command=""; fi'
    yield "    COMPREPLY=()"
    yield '    case "$command:$before" in'
    for name, (_, options) in commands.items():
        for option in options:
            if option.takes_value:
                patterns = "|".join(f"{name}:{flag}" for flag in option.flags)
                yield f"        {patterns}) {_bash_values(option)} ;;"
        flags = quote(" ".join(flag for option in options for flag in option.flags))
        values = quote(" ".join(value for option in options if not option.flags for value in option.values))
        yield f"        {name}:*) if [[ $word == -* ]]; then words={flags}; else words={values}; fi ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _vkprefill vkprefill"


def _bash_values(option: Option) -> str:
    if option.values:
        return f'COMPREPLY=($(compgen -W {quote(" ".join(option.values))} -- "$word")); return'
    return "return" if option.takes_file else "compopt +o default 2>/dev/null; return"


def _zsh(commands: Commands) -> Iterator[str]:
    yield "#compdef vkprefill"
    yield "_vkprefill() {"
    yield "    local -a commands"
    yield "    commands=("
    yield from (f"        {quote(f'{name}:{_plain(text)}')}" for name, (text, _) in commands.items())
    yield "    )"
    yield "    if (( CURRENT == 2 )); then _describe command commands; return; fi"
    yield "    local command=$words[2]"
    yield "    shift words; (( CURRENT-- ))"
    yield '    case "$command" in'
    for name, (_, options) in commands.items():
        yield f"        {name}) _arguments -s- \\"
        for option in options:
            yield from (f"            {quote(_zsh_option(option, flag))} \\" for flag in option.flags or ("",))
        yield "            '*:file:_files' ;;"
    yield "    esac"
    yield "}"
    yield 'if [ "$funcstack[1]" = "_vkprefill" ]; then _vkprefill "$@"; else compdef _vkprefill vkprefill; fi'


def _zsh_option(option: Option, flag: str) -> str:
    values = (
        f":value:({' '.join(option.values)})" if option.values else ":file:_files" if option.takes_file else ":value:"
    )
    if not flag:
        return f"1{values}"
    return f"*{flag}[{_plain(option.text)}]{values if option.takes_value else ''}"


def _plain(text: str) -> str:
    """Without what zsh reads as its own."""
    return text.translate(str.maketrans({"[": "(", "]": ")", ":": ",", "\\": "/"}))


def _fish(commands: Commands) -> Iterator[str]:
    yield "complete -c vkprefill -n __fish_use_subcommand -l help -d 'show the subcommands'"
    yield "complete -c vkprefill -n __fish_use_subcommand -l version -d 'show the version'"
    for name, (text, options) in commands.items():
        yield f"complete -c vkprefill -f -n __fish_use_subcommand -a {name} -d {quote(text)}"
        for option in options:
            names = [_fish_flag(flag) for flag in option.flags]
            more = ["-r"] if option.takes_value else []
            if option.values:
                more = [*more, "-f", "-a", quote(" ".join(option.values))]
            elif option.takes_value and not option.takes_file:
                more.append("-x")
            line = ["complete -c vkprefill -n", quote(f"__fish_seen_subcommand_from {name}"), *names, *more]
            yield " ".join([*line, "-d", quote(option.text)])


def _fish_flag(flag: str) -> str:
    if flag.startswith("--"):
        return f"-l {flag[2:]}"
    return f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"


SCRIPTS: dict[str, Callable[[Commands], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
