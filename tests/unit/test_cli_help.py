"""Help, mistakes on the command line, the version."""

from __future__ import annotations

import re

import pytest

from vkprefill.cli import parser as parsers
from vkprefill.cli.commands import SUBCOMMANDS, build_parser
from vkprefill.cli.main import main
from vkprefill.cli.parser import FIRST, features


def stopped(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(argv))
    return caught.value.code, *capsys.readouterr()


def flags_in(text: str) -> set[str]:
    return {flag for line in re.findall(r"^  (-.*)", text, re.M) for flag in re.findall(r"(?<!\S)--?[a-z][\w-]*", line)}


@pytest.mark.parametrize("command", FIRST)
def test_ten_options_first(command, capsys):
    code, short, err = stopped(capsys, command, "--help")
    assert (code, err) == (0, "") and short.startswith(f"usage: vkprefill {command} [OPTIONS]\n")
    code, whole, err = stopped(capsys, command, "--help-all")
    assert (code, err) == (0, "") and whole.startswith(f"usage: vkprefill {command} ")
    known = build_parser([command]).subcommands()[command]
    assert len(FIRST[command].split()) == 10 and {*FIRST[command].split()} <= {*known.flags()}
    assert {*FIRST[command].split()} <= flags_in(short) < flags_in(whole)
    assert {*known.flags()} <= flags_in(whole) | {flag for flag in known.flags() if flag in whole}
    hidden = int(re.search(r"(\d+) more options: vkprefill \w+ --help-all\n$", short)[1])
    assert hidden == len(known._actions) - 12, "of the others only --help and --help-all are shown"


@pytest.mark.parametrize("command", sorted({*SUBCOMMANDS} - {*FIRST}))
def test_few_options_are_all_shown(command, capsys):
    code, out, err = stopped(capsys, command, "--help")
    assert (code, err) == (0, "") and "--help-all" not in out
    known = build_parser([command]).subcommands()[command]
    assert all(flag in out for flag in known.flags())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("generate --tempp 1", "vkprefill generate: error: --tempp: no such option; did you mean --temp?"),
        ("generate -p x --temperature=1", "vkprefill generate: error: --temperature: no such option; did you mean"),
        ("serve --prot 1", "vkprefill serve: error: --prot: no such option; did you mean --port?"),
        ("devices --jsn", "vkprefill devices: error: --jsn: no such option; did you mean --json?"),
        ("generate -p x --qqqqqqqq", "vkprefill generate: error: --qqqqqqqq: no such option\n"),
        ("generate -p x more", "vkprefill generate: error: more: not expected here\n"),
        ("genrate", "vkprefill: error: genrate: no such command; did you mean generate?"),
        ("qqq", "vkprefill: error: qqq: no such command\n"),
        ("--verson", "vkprefill: error: --verson: no such option; did you mean --version?"),
        ("", "vkprefill: error: the following arguments are required: COMMAND"),
        ("generate", "vkprefill generate: error: a prompt is needed: -p TEXT, -f FILE, or -f - for stdin"),
        ("generate -n x -p y", "vkprefill generate: error: argument -n/--n-predict: invalid int value: 'x'"),
        ("generate -p x --spec-draft-n 1", "vkprefill generate: error: ambiguous option: --spec-draft-n could match"),
    ],
)
def test_a_mistake_is_two_lines(argv, said, capsys):
    code, out, err = stopped(capsys, *argv.split())
    assert (code, out) == (2, "") and err.startswith("usage: vkprefill") and err.count("\n") == 2
    assert err.splitlines(keepends=True)[1].startswith(said)


def test_version(capsys, monkeypatch):
    code, out, err = stopped(capsys, "--version")
    assert (code, err) == (0, "") and re.fullmatch(rf"vkprefill \d+\.\d+\.\d+\n{re.escape(features())}\n", out)
    assert "kp 0.9.0" in out
    monkeypatch.setattr(parsers, "find_spec", lambda name: None)
    assert features() == (
        "with kp 0.9.0; without barrier operation, native companion, extra server, extra plots, extra ray"
    )
