"""A variable for every option of `serve`."""

import argparse

import pytest

from vkprefill.cli import commands
from vkprefill.cli.commands import build_parser
from vkprefill.cli.main import main
from vkprefill.cli.variables import variable_of

# In place of a value that any option takes.
TEXTS = {int: "3", float: "0.5"}


def actions() -> list[argparse.Action]:
    known = build_parser(["serve"]).subcommands()["serve"]
    return [action for action in known._actions if variable_of(action) is not None]


@pytest.fixture
def parsed(monkeypatch):
    """parsed(*arguments, **variables) -> the options that `serve` runs with; or the exit code where it does not."""

    def run(*arguments: str, **variables: str) -> argparse.Namespace | int:
        found: list[argparse.Namespace] = []
        monkeypatch.setattr("vkprefill.cli.serve.run", lambda args: found.append(args) or 0)
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                code = main(["serve", *arguments])
            except SystemExit as ended:
                code = ended.code
        return found[0] if found else code

    return run


def typed(action: argparse.Action) -> tuple[str, list[str]]:
    """A variable's text for an option, and the same on the command line."""
    flag = next(flag for flag in action.option_strings if flag.startswith("--"))
    if action.nargs == 0:
        return "on", [flag]
    text = str(action.choices[-1]) if action.choices else TEXTS.get(action.type, "some")
    return text, [flag, text]


def without_models(args: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(args).items() if name not in ("run", "sorted_drafts")}


def test_every_option_has_one(parsed, monkeypatch):
    """It does what the flag does, and the flag beats it."""
    monkeypatch.setattr(commands, "find_models", lambda args: None)  # asks for files
    names = [variable_of(action) for action in actions()]
    assert len(names) == len(set(names)) > 60 and {"VKPREFILL_CTX_SIZE", "VKPREFILL_API_KEY"} < set(names)
    usual = parsed()
    for action in actions():
        text, flags = typed(action)
        by_variable, by_flag = parsed(**{variable_of(action): text}), parsed(*flags)
        assert without_models(by_variable) == without_models(by_flag), action.option_strings
        assert getattr(by_flag, action.dest) != getattr(usual, action.dest), action.option_strings
        if action.type is int:
            assert getattr(parsed(*flags, **{variable_of(action): "77"}), action.dest) == 3


def test_switches_are_on_or_off(parsed):
    assert parsed().specprefill is None and not parsed(VKPREFILL_OFFLINE="0").offline
    for off in ("0", "false", "No", "off"):
        assert parsed(VKPREFILL_SPECPREFILL=off).specprefill is False
        assert parsed("--specprefill", VKPREFILL_SPECPREFILL=off).specprefill is True
    for on in ("1", "true", "Yes", "on"):
        assert parsed(VKPREFILL_SPECPREFILL=on).specprefill is True
        assert parsed("--no-specprefill", VKPREFILL_SPECPREFILL=on).specprefill is False


def test_what_may_be_repeated_has_commas(parsed):
    assert parsed(VKPREFILL_ALLOWED_HOST="a,b").allowed_host == ["a", "b"]
    assert parsed("--allowed-host", "c", "--allowed-host", "d", VKPREFILL_ALLOWED_HOST="a,b").allowed_host == ["c", "d"]
    assert parsed("--allowed-host", "c").allowed_host == ["c"] and parsed().allowed_host == []


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"PORT": "x"}, 2, "vkprefill serve: error: VKPREFILL_PORT: invalid int value: 'x'"),
        ({"PORT": ""}, 2, "VKPREFILL_PORT: invalid int value: ''"),
        ({"PRECISION": "tiny"}, 2, "VKPREFILL_PRECISION: invalid choice: 'tiny'"),
        ({"OFFLINE": "banana"}, 2, "VKPREFILL_OFFLINE: found 'banana', wanted 1 or 0"),
        ({"OFFLINE": ""}, 2, "VKPREFILL_OFFLINE: found '', wanted 1 or 0"),
        ({"MAX_QUEUE": "0"}, 1, "Error: VKPREFILL_MAX_QUEUE: found 0, wanted at least 1"),
        ({"N_PREDICT": "-5"}, 1, "Error: VKPREFILL_N_PREDICT: found -5, wanted -1 or at least 1"),
        ({"SPECPREFILL_KEEP_RATIO": "7"}, 1, "Error: VKPREFILL_SPECPREFILL_KEEP_RATIO: found 7"),
        ({"SPEC_DRAFT_N_MAX": "9"}, 1, "Error: VKPREFILL_SPEC_DRAFT_N_MAX: found 9"),
        ({"TEMP": "-1"}, 1, "Error: VKPREFILL_TEMP: "),
        ({"MODEL": "./no.gguf"}, 1, "no.gguf"),
        ({"CTX_SIZE": "-4"}, 1, "Error: VKPREFILL_CTX_SIZE"),
        ({"STEER": "x"}, 1, "Error: VKPREFILL_STEER"),
        (
            {"PROT": "1", "MAX_QUEUE": "0"},
            1,
            "VKPREFILL_PROT: not used, no variable has this name; the nearest is VKPREFILL_P",
        ),
        ({"MODELS": "/nowhere", "COMPANION": "0", "MAX_QUEUE": "0"}, 1, ""),
    ],
)
def test_bad_values_are_named_by_their_variable(capsys, monkeypatch, variables, code, said):
    for name, value in variables.items():
        monkeypatch.setenv(f"VKPREFILL_{name}", value)
    try:
        found = main(["serve"])
    except SystemExit as ended:
        found = ended.code
    err = capsys.readouterr().err
    assert found == code and said in err
    assert ("no variable has this name" in err) == ("PROT" in variables)


def test_a_flag_that_beats_a_variable_is_named(capsys, monkeypatch):
    monkeypatch.setenv("VKPREFILL_MAX_QUEUE", "7")
    assert main(["serve", "--max-queue", "0"]) == 1
    assert "Error: --max-queue: found 0" in capsys.readouterr().err


def test_other_subcommands_have_none(capsys, monkeypatch):
    monkeypatch.setenv("VKPREFILL_JSON", "banana")
    monkeypatch.setenv("VKPREFILL_PORT", "x")
    assert main(["models"]) == 0 and "VKPREFILL" not in capsys.readouterr().err


def test_help_says_so(capsys):
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["serve", flag])
        assert "VKPREFILL_CTX_SIZE is --ctx-size" in " ".join(capsys.readouterr().out.split())
