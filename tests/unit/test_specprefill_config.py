"""The settings of speculative prefill: defaults, ranges, variables, flags, JSON; which source beats which."""

import argparse
import json
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from vkprefill.cli.specprefill_options import add_specprefill_options, flag, refuse_checks, specprefill_config
from vkprefill.errors import RequestError
from vkprefill.specprefill.setting_types import Switch
from vkprefill.specprefill.settings import SpecPrefillConfig

SETTINGS = fields(SpecPrefillConfig)
NAMES = [setting.name for setting in SETTINGS]

# setting: default, another value as text and as it is
TABLE = {
    "chunk_size": (32, "64", 64),
    "chunk_align": ("lines", "tokens", "tokens"),
    "select_mode": ("mass", "chunk", "chunk"),
    "cumulative_mass": (0.85, "0.5", 0.5),
    "keep_ratio": (0.3, "1", 1.0),
    "max_keep": ("auto", "0", 0),
    "protect_question": (True, "off", False),
    "tail": (0, "100", 100),
    "protect": ((), "0:128,512:640", ((0, 128), (512, 640))),
    "scorer": ("auto", "self", "self"),
    "score_layer": (None, "11", 11),
    "rows": ("rope", "nope", "nope"),
    "lookahead": (8, "0", 0),
    "pool_size": (13, "1", 1),
    "score_layers": ("all", "15,3,15", (3, 15)),
    "score_depth": ("auto", "0.5", 0.5),
    "tail_queries": (0, "16", 16),
    "window": (0, "auto", "auto"),
    "draft_context": (0, "8192", 8192),
    "normalize": ("minmax", "zscore", "zscore"),
    "boost_first_mult": (1.5, "1", 1.0),
    "boost_first_n": (64, "0", 0),
    "boost_last_mult": (1.3, "2.5e0", 2.5),
    "boost_last_n": (128, "7", 7),
    "min_tokens": (0, "8192", 8192),
    "tool_guard": (True, "off", False),
    "tool_match": ("words", "substrings", "substrings"),
    "break_even": (True, "FALSE", False),
    "break_even_safety": (1.2, ".5", 0.5),
    "draft_tokens_per_s": (0.0, "600", 600.0),
    "target_tokens_per_s": (0.0, "270", 270.0),
    "on_error": ("dense", "error", "error"),
    "check": ("off", "wait", "wait"),
    "on_mismatch": ("auto", "revise", "revise"),
    "check_share": (0.5, "0.25", 0.25),
    "check_idle": (True, "off", False),
}
VARIABLES = {
    "SP_CHUNK": "chunk_size",
    "SP_SCORER": "scorer",
    "SP_LOOKAHEAD": "lookahead",
    "SP_WINDOW": "window",
    "SP_SPEC_CTX": "draft_context",
    "SP_MAX_KEEP": "max_keep",
    "SP_KEEP_PCT": "keep_ratio",
    "SP_SELECT_MODE": "select_mode",
    "SP_CUMULATIVE_MASS": "cumulative_mass",
    "SP_BOOST_FIRST_MULT": "boost_first_mult",
    "SP_BOOST_FIRST_N": "boost_first_n",
    "SP_BOOST_LAST_MULT": "boost_last_mult",
    "SP_BOOST_LAST_N": "boost_last_n",
    "SP_BREAK_EVEN": "break_even",
    "SP_SPEC_THROUGHPUT": "draft_tokens_per_s",
    "SP_BREAK_EVEN_SAFETY": "break_even_safety",
}


def parser(defaults: SpecPrefillConfig | None = None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="test")
    add_specprefill_options(made, defaults)
    return made


def from_flags(*argv: str, env: dict[str, str] | None = None, defaults: SpecPrefillConfig | None = None):
    return specprefill_config(parser(defaults).parse_args(argv), env or {})


def test_defaults():
    assert {name: default for name, (default, _, _) in TABLE.items()} == {
        name: getattr(SpecPrefillConfig(), name) for name in NAMES
    }


def test_variables():
    assert {s.metadata["variable"]: s.name for s in SETTINGS if s.metadata["variable"]} == VARIABLES


def test_frozen_equal_and_hashable():
    config = SpecPrefillConfig(score_layers=[7, 3], keep_ratio=1, protect=[[0, np.int64(4)]])
    assert config == SpecPrefillConfig(score_layers=(3, 7), keep_ratio=1.0, protect=((0, 4),))
    assert hash(config) == hash(SpecPrefillConfig(score_layers=(3, 7), keep_ratio=1.0, protect=((0, 4),)))
    with pytest.raises(FrozenInstanceError):
        config.tail = 3


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("chunk_size", 0, "a whole number from 1 to 2147483647"),
        ("chunk_size", 32.0, "a whole number"),
        ("chunk_size", True, "a whole number"),
        ("chunk_size", "32", "a whole number"),
        ("chunk_size", None, "a whole number"),
        ("keep_ratio", 30, r"a number from 0 to 1 \(a share: 0.3 is 30 %\)"),
        ("keep_ratio", -0.1, "from 0 to 1"),
        ("keep_ratio", float("nan"), "from 0 to 1"),
        ("cumulative_mass", 1.01, "from 0 to 1"),
        ("cumulative_mass", False, "from 0 to 1"),
        ("pool_size", 12, "an odd whole number from 1 to 1023"),
        ("lookahead", 257, "from 0 to 256"),
        ("max_keep", -1, "from 0"),
        ("boost_first_mult", float("inf"), "from 0 to 1000"),
        ("window", "half", "auto, or a whole number"),
        ("window", -1, "auto, or a whole number"),
        ("scorer", "both", "auto or draft or self"),
        ("score_layer", "middle", "auto, or a whole number from 0 to 1023"),
        ("score_layer", -1, "auto, or a whole number from 0 to 1023"),
        ("score_layer", [3, 7], "auto, or a whole number from 0 to 1023"),
        ("score_layer", (3, 7), "auto, or a whole number from 0 to 1023"),
        ("score_layer", "3,7", "auto, or a whole number from 0 to 1023"),
        ("rows", "both", "rope or nope"),
        ("score_layers", "some", "all, or whole numbers from 0 to 1023"),
        ("score_layers", (), "all, or whole numbers"),
        ("score_layers", (3, -1), "all, or whole numbers"),
        ("score_layers", 3, "all, or whole numbers"),
        ("protect", ((5, 5),), "0 <= START < END"),
        ("protect", ((-1, 5),), "0 <= START < END"),
        ("protect", ((1, 2, 3),), "0 <= START < END"),
        ("protect", (1, 2), "0 <= START < END"),
        ("protect", None, "0 <= START < END"),
        ("select_mode", "best", "mass or chunk"),
        ("select_mode", ["mass"], "mass or chunk"),
        ("normalize", "softmax", "minmax or percentile or zscore"),
        ("chunk_align", "words", "tokens or lines"),
        ("on_error", "", "found nothing, wanted dense or error"),
        ("tool_guard", 1, "on or off"),
        ("tool_match", True, "words or substrings"),
        ("break_even", "on", "on or off"),
    ],
)
def test_bad_values_name_setting_value_and_range(name, value, wanted):
    with pytest.raises(RequestError, match=wanted) as caught:
        SpecPrefillConfig(**{name: value})
    assert str(caught.value).startswith(f"{name}: found {value if value != '' else 'nothing'}, wanted ")
    assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match=name):
        SpecPrefillConfig.from_dict({name: value})


@pytest.mark.parametrize("name", NAMES)
def test_text_reads_back(name):
    default, text, value = TABLE[name]
    kind = {s.name: s.metadata["kind"] for s in SETTINGS}[name]
    assert kind.checked(kind.parse(text)) == value
    assert kind.parse(kind.text(value)) == value
    assert kind.parse(kind.text(default)) == default


def test_environment():
    env = {variable: TABLE[name][1] for variable, name in VARIABLES.items()}
    expected = SpecPrefillConfig(**{name: TABLE[name][2] for name in VARIABLES.values()})
    assert SpecPrefillConfig.from_environment(env) == expected
    assert SpecPrefillConfig.from_environment({"SP_OTHER": "x", "PATH": "/"}) == SpecPrefillConfig()


def test_environment_is_the_process_environment(monkeypatch):
    monkeypatch.setenv("SP_CHUNK", "48")
    assert SpecPrefillConfig.from_environment().chunk_size == 48
    assert SpecPrefillConfig().chunk_size == 32  # only where it is asked for


@pytest.mark.parametrize(
    "variable, text",
    [
        ("SP_CHUNK", ""),
        ("SP_CHUNK", "32.0"),
        ("SP_CHUNK", " 32"),
        ("SP_CHUNK", "3_2"),
        ("SP_CHUNK", "٣"),
        ("SP_CHUNK", "9" * 5000),
        ("SP_KEEP_PCT", "30"),
        ("SP_KEEP_PCT", "30%"),
        ("SP_KEEP_PCT", "nan"),
        ("SP_KEEP_PCT", "1e"),
        ("SP_WINDOW", "Auto"),
        ("SP_SELECT_MODE", "MASS"),
        ("SP_BREAK_EVEN", "maybe"),
        ("SP_SPEC_THROUGHPUT", "1e400"),
    ],
)
def test_bad_variables_are_named(variable, text):
    with pytest.raises(RequestError, match=f"^{variable}: found .*, wanted ") as caught:
        SpecPrefillConfig.from_environment({variable: text})
    assert len(str(caught.value)) < 200


def test_precedence_of_environment():
    base = SpecPrefillConfig(chunk_size=8, lookahead=3, min_tokens=8192)
    found = SpecPrefillConfig.from_environment({"SP_CHUNK": "16", "SP_LOOKAHEAD": "5"}, base, lookahead=6)
    assert found == replace(base, chunk_size=16, lookahead=6)


def test_preset_fork():
    fork = SpecPrefillConfig.preset("fork")
    assert fork == SpecPrefillConfig(
        lookahead=2,
        pool_size=1,
        score_depth=1,
        max_keep=2000,
        protect_question=False,
        chunk_align="tokens",
        window="auto",
        draft_context=8192,
        draft_tokens_per_s=600,
        target_tokens_per_s=270,
        tool_match="substrings",
    )
    assert fork.window_size(20000) == 2000
    with pytest.raises(RequestError, match="preset: found other, wanted fork"):
        SpecPrefillConfig.preset("other")


def test_automatic_max_keep():
    assert SpecPrefillConfig().most_kept == 2000 and SpecPrefillConfig(select_mode="chunk").most_kept == 0
    for mode in ("mass", "chunk"):
        assert SpecPrefillConfig(select_mode=mode, max_keep=7).most_kept == 7
        assert SpecPrefillConfig(select_mode=mode, max_keep=0).most_kept == 0
        assert replace(SpecPrefillConfig.preset("fork"), select_mode=mode).most_kept == 2000


def test_layers_and_depth_are_one_choice():
    assert SpecPrefillConfig(score_depth=0.5).score_layers == "all"
    for depth in ("auto", 1):
        assert SpecPrefillConfig(score_depth=depth, score_layers=(3, 7)).score_layers == (3, 7)
    with pytest.raises(RequestError, match="^score_depth: found 0.5 with score_layers 3,7, wanted one of the two$"):
        SpecPrefillConfig(score_depth=0.5, score_layers=(3, 7))


def test_window_size():
    assert SpecPrefillConfig().window_size(5000) == 0
    assert SpecPrefillConfig(window=1234).window_size(5000) == 1234
    assert SpecPrefillConfig(window="auto", draft_context=8192).window_size(5000) == 2000
    assert SpecPrefillConfig(window="auto").window_size(16384) == 1000
    assert SpecPrefillConfig(window="auto").window_size(2**31) == 32
    assert SpecPrefillConfig(window="auto", chunk_size=500).window_size(2**31) == 500


@pytest.mark.parametrize("window, chunk_size, least", [(1, 32, 32), (31, 1, 32), (32, 33, 33), (499, 500, 500)])
def test_windows_that_are_too_small(window, chunk_size, least):
    wanted = f"found {window} with chunk_size {chunk_size}, wanted 0, auto, or at least {least} tokens"
    with pytest.raises(RequestError, match=f"^window: {wanted}") as caught:
        SpecPrefillConfig(window=window, chunk_size=chunk_size)
    assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match=wanted):
        SpecPrefillConfig.from_dict({"window": window}, SpecPrefillConfig(chunk_size=chunk_size))
    assert SpecPrefillConfig(window=least, chunk_size=chunk_size).window_size(5000) == least


def test_choice_is_what_chooses_tokens():
    """Every setting but those that say whether tokens are chosen at all."""
    guards = {"min_tokens", "tool_guard", "tool_match", "break_even", "break_even_safety"}
    guards |= {"draft_tokens_per_s", "target_tokens_per_s", "on_error"}
    guards |= {"check", "on_mismatch", "check_share", "check_idle"}
    for name, (_, _, value) in TABLE.items():
        changed = SpecPrefillConfig(**{name: value})
        assert (changed.choice == SpecPrefillConfig()) == (name in guards), name


def test_json_round_trip():
    config = SpecPrefillConfig(**{name: value for name, (_, _, value) in TABLE.items() if name != "score_depth"})
    assert list(config.as_dict()) == NAMES
    assert config.as_dict()["protect"] == [[0, 128], [512, 640]]
    assert SpecPrefillConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_from_dict():
    base = SpecPrefillConfig(chunk_size=8)
    assert SpecPrefillConfig.from_dict({}, base) == base
    assert SpecPrefillConfig.from_dict({}) == SpecPrefillConfig()
    assert SpecPrefillConfig.from_dict({"tail": 5}, base) == SpecPrefillConfig(chunk_size=8, tail=5)
    with pytest.raises(RequestError, match="found setting keep_rato, wanted some of .*keep_ratio"):
        SpecPrefillConfig.from_dict({"keep_rato": 0.2})
    for wrong in (None, True, [], "x"):
        with pytest.raises(RequestError, match="wanted an object of settings"):
            SpecPrefillConfig.from_dict(wrong)


def test_docstring_and_help_name_every_setting_with_default():
    help_text = " ".join(parser().format_help().split()).replace("- ", "-")
    for setting in SETTINGS:
        default = setting.metadata["kind"].text(setting.default)
        variable = setting.metadata["variable"]
        assert f"    {setting.name} (" in SpecPrefillConfig.__doc__
        assert f"default {default}" in SpecPrefillConfig.__doc__
        assert f"--specprefill-{setting.name.replace('_', '-')}" in help_text
        source = f"; variable {variable}" if variable else ""
        assert f"{setting.metadata['help']} (default: {default}{source})" in help_text


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_its_flag(name):
    _, text, value = TABLE[name]
    is_switch = isinstance({s.name: s.metadata["kind"] for s in SETTINGS}[name], Switch)
    if is_switch:
        on, off = from_flags(flag(name)), from_flags(f"--no-specprefill-{name.replace('_', '-')}")
        assert getattr(on, name) is True and getattr(off, name) is False
    else:
        assert from_flags(flag(name), text) == SpecPrefillConfig(**{name: value})
        with pytest.raises(RequestError, match=f"^{flag(name)}: found x, wanted "):
            from_flags(flag(name), "x")


def test_a_flag_without_a_value():
    assert from_flags("--specprefill-check").check == "on" and from_flags().check == "off"


@pytest.mark.parametrize("argv", [["--specprefill-check"], ["--specprefill-on-mismatch", "stop"]])
def test_flags_of_checks_where_there_is_no_answer(argv):
    args = parser().parse_args(argv)
    with pytest.raises(RequestError, match=f"^{argv[0]}: not for this subcommand, which checks no answers$"):
        refuse_checks(args)
    refuse_checks(parser().parse_args(["--specprefill-keep-ratio", "0.5"]))


def test_precedence_of_flags():
    env = {"SP_CHUNK": "16", "SP_LOOKAHEAD": "5", "SP_BREAK_EVEN": "off"}
    assert from_flags() == SpecPrefillConfig()
    assert from_flags(env=env) == SpecPrefillConfig(chunk_size=16, lookahead=5, break_even=False)
    found = from_flags("--specprefill-lookahead", "6", "--specprefill-break-even", env=env)
    assert found == SpecPrefillConfig(chunk_size=16, lookahead=6)


def test_preset_beats_variables_and_flags_beat_it():
    fork = SpecPrefillConfig.preset("fork")
    argv = ("--specprefill-preset", "fork")
    assert from_flags(*argv, env={"SP_CHUNK": "16"}) == fork
    assert from_flags(*argv, "--specprefill-pool-size", "5") == replace(fork, pool_size=5)


def test_defaults_of_a_subcommand():
    server = SpecPrefillConfig(min_tokens=8192)
    assert from_flags(env={"SP_CHUNK": "16"}, defaults=server) == replace(server, chunk_size=16)
    assert from_flags("--specprefill-min-tokens", "1", defaults=server).min_tokens == 1
    assert "(default: 8192)" in " ".join(parser(server).format_help().split())


def test_on_and_off():
    assert from_flags("--no-specprefill", "--specprefill-tail", "5") is None
    assert from_flags("--specprefill") == SpecPrefillConfig()
    assert parser().parse_args([]).specprefill is None  # on where there is a draft
    with pytest.raises(RequestError, match="--specprefill-tail"):  # a bad value is told, on or off
        from_flags("--no-specprefill", "--specprefill-tail", "x")
