"""Settings that were asked for and have no part are named with the reason, by one list of rules."""

import argparse
import logging
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest

from vkprefill.cli.flag_names import named_as_asked
from vkprefill.cli.specprefill_options import (
    add_specprefill_options,
    all_settings,
    describe_specprefill,
    unused_settings,
)
from vkprefill.errors import RequestError
from vkprefill.evaluation.methods import Variant, read_variant, uses_of
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.requests import Defaults, parse_chat
from vkprefill.specprefill.plan import SpecPrefillReport, choice_reason
from vkprefill.specprefill.selection import select
from vkprefill.specprefill.settings import DRAFT, SELF, SpecPrefillConfig
from vkprefill.specprefill.unused import ALL, Use, unused, unused_by_all

BY_DRAFT, BY_SELF, NOBODY = Use(DRAFT, draft_context=4096), Use(SELF), Use(None, "there is no draft")
HELLO = [{"role": "user", "content": "Hello"}]


def named(use: Use, **settings: object) -> set[str]:
    return set(unused(SpecPrefillConfig(**settings), use))


@pytest.mark.parametrize(
    ("use", "settings", "found"),
    [
        (BY_DRAFT, {}, set()),
        (BY_DRAFT, {"keep_ratio": 0.3}, {"keep_ratio"}),  # its default, but it was asked for
        (BY_DRAFT, {"keep_ratio": 0.3, "select_mode": "chunk", "cumulative_mass": 0.9}, {"cumulative_mass"}),
        (BY_DRAFT, {"keep_ratio": 1, "cumulative_mass": 0.5, "max_keep": 5}, {"cumulative_mass", "max_keep"}),
        (BY_DRAFT, {"score_layer": 3, "lookahead": 4, "window": 64, "score_depth": 0.5}, {"score_layer"}),
        (BY_SELF, {"score_layer": 3, "tail_queries": 4, "pool_size": 5, "boost_first_n": 3}, set()),
        (BY_SELF, {"lookahead": 0, "score_depth": 0.5}, {"lookahead", "score_depth"}),
        (BY_SELF, {"score_layers": (3,), "window": 64}, {"score_layers", "window"}),
        (BY_SELF, {"draft_context": 9, "draft_tokens_per_s": 9}, {"draft_context", "draft_tokens_per_s"}),
        (BY_DRAFT, {"lookahead": 4, "tail_queries": 8}, {"lookahead"}),
        (Use(DRAFT, stops_early=True), {"lookahead": 4, "score_depth": 0.5}, {"lookahead"}),
        (BY_DRAFT, {"draft_context": 4096}, set()),
        (BY_DRAFT, {"draft_context": 512}, {"draft_context"}),  # it was loaded before
        (BY_DRAFT, {"draft_context": 512, "window": "auto"}, set()),
        (Use(DRAFT), {"draft_context": 512}, set()),  # it is to be loaded
        (Use(DRAFT, num_tokens=100), {"protect": ((99, 200),)}, set()),
        (Use(DRAFT, num_tokens=100), {"protect": ((100, 200),)}, {"protect"}),
        (BY_DRAFT, {"tool_match": "substrings", "tool_guard": False}, {"tool_match"}),
        (BY_DRAFT, {"break_even": False, "target_tokens_per_s": 5, "min_tokens": 5}, {"target_tokens_per_s"}),
        (BY_DRAFT, {"on_mismatch": "stop", "check_share": 0.5, "check_idle": False, "check": "on"}, set()),
        (BY_SELF, {"on_mismatch": "stop", "check_share": 0.5}, {"on_mismatch", "check_share"}),
        (BY_DRAFT, {"check_idle": True, "check": "wait"}, {"check_idle"}),
        (NOBODY, {"keep_ratio": 0.2, "select_mode": "chunk", "check": "on"}, {"keep_ratio", "select_mode"}),
        (Use(None, given_ranges=True), {"tail": 4, "check": "on", "on_mismatch": "stop"}, {"tail"}),
        (Use(SELF, given_ranges=True), {"score_layer": 3, "scorer": "self", "keep_ratio": 0.2}, {"keep_ratio"}),
    ],
)
def test_rules(use, settings, found):
    assert named(use, **settings) == found


def test_every_setting_has_its_rule():
    """A new setting is used for every prompt, or it is in a rule."""
    everything = SpecPrefillConfig(check="wait", tail_queries=4, protect=((5, 6),), draft_context=9)
    uses = (BY_DRAFT, BY_SELF, Use(DRAFT, num_tokens=5, draft_context=8))
    configs = [replace(everything, **changes) for changes in ({}, {"select_mode": "chunk"}, {"tool_guard": False})]
    configs += [SpecPrefillConfig(keep_ratio=1), SpecPrefillConfig()]
    in_rules = {name for use in uses for config in configs for name in unused(config, use, ALL)}
    always = {
        *("chunk_size", "chunk_align", "protect_question", "tail", "scorer", "pool_size", "tail_queries", "normalize"),
        "rows",
        *("boost_first_mult", "boost_first_n", "boost_last_mult", "boost_last_n", "min_tokens", "tool_guard"),
        *("on_error", "check"),
    }
    assert in_rules | always == set(ALL) and not in_rules & always
    assert set(unused(everything, NOBODY, ALL)) == set(ALL) - {"check"}  # the report has its status


def test_reasons_stand_in_the_order_of_the_settings():
    found = unused(SpecPrefillConfig(lookahead=1, keep_ratio=0.2), BY_SELF)
    assert list(found.items()) == [
        ("keep_ratio", "counts with select_mode chunk only"),
        ("lookahead", "counts with a draft only"),
    ]
    assert unused(SpecPrefillConfig(tail=1), NOBODY) == {"tail": "there is no draft"}


def test_several_uses():
    config = SpecPrefillConfig(lookahead=4, score_layer=3, min_tokens=5, keep_ratio=0.3, target_tokens_per_s=9)
    assert set(unused_by_all(config, [BY_DRAFT])) == {"score_layer", "keep_ratio"}
    assert set(unused_by_all(config, [BY_DRAFT, BY_SELF])) == {"keep_ratio"}
    everything = Use(DRAFT, guarded=False)
    assert set(unused_by_all(config, [everything])) == {
        "score_layer",
        "keep_ratio",
        "min_tokens",
        "target_tokens_per_s",
    }


def test_what_the_command_line_says_after_an_answer():
    config = SpecPrefillConfig(protect=((100, 200),), score_layer=3)
    report = SpecPrefillReport("active", "it did", 100, unused=unused(config, Use(DRAFT, num_tokens=100)))
    said = "speculative prefill: active: it did; protect: not used, the prompt has 100 tokens"  # the layer was before
    assert describe_specprefill(report, config, object()) == said


def test_variants_of_an_evaluation():
    base = Variant("", SpecPrefillConfig(), False)
    layer, window = read_variant("score_layer=3", base), read_variant("window=64", base)
    assert [use.scorer for use in uses_of(["dense", "draft", "self"], [base, layer, window])] == ["draft", "self"]
    assert not any(use.guarded for methods in (["dense"], ["draft", "self"]) for use in uses_of(methods, [base]))
    for methods, variant in ((["draft"], layer), (["dense"], layer), (["dense", "self"], window)):
        with pytest.raises(RequestError, match=f"^--variant {variant.label}: .* has no part, "):
            uses_of(methods, [base, variant])
    with pytest.raises(RequestError, match="^--variant min_tokens=5: min_tokens has no part, every prompt is scored"):
        uses_of(["draft"], [base, read_variant("min_tokens=5", base)])


def test_what_was_asked_for_is_noted():
    config = SpecPrefillConfig(64, tail=5)
    assert config.given == {"chunk_size", "tail"} and config == SpecPrefillConfig(chunk_size=64, tail=5)
    assert pickle.loads(pickle.dumps(config)).given == config.given
    assert config.having({"scorer": "self"}).given == config.given  # chosen for the caller
    assert SpecPrefillConfig.from_dict({"window": 64}, config).given == {"window"}
    assert SpecPrefillConfig.from_environment({"SP_CHUNK": "8"}, config, tail=4).given == {"chunk_size", "tail"}
    assert SpecPrefillConfig.preset("fork").given == SpecPrefillConfig().given == set()
    assert SpecPrefillConfig.from_dict(config.as_dict()) == config


@pytest.mark.parametrize(
    ("base", "asked", "found"),
    [
        ({"score_layers": (3,)}, {"score_depth": 0.5}, {"score_layers": "all", "score_depth": 0.5}),
        ({"score_depth": 0.5}, {"score_layers": [3]}, {"score_layers": (3,), "score_depth": "auto"}),
        ({"score_layers": (3,)}, {"score_depth": "auto"}, {"score_layers": (3,), "score_depth": "auto"}),
        ({"score_layers": (3,)}, {"score_depth": 1}, {"score_layers": (3,), "score_depth": 1.0}),
        ({"window": 64}, {"chunk_size": 128}, {"window": 128, "chunk_size": 128}),
        ({"window": 64}, {"chunk_size": 8}, {"window": 64, "chunk_size": 8}),
        ({"window": "auto"}, {"chunk_size": 128}, {"window": "auto", "chunk_size": 128}),
    ],
)
def test_a_request_is_not_refused_for_what_it_did_not_ask(base, asked, found):
    config = SpecPrefillConfig.from_dict(asked, SpecPrefillConfig(**base))
    assert {name: getattr(config, name) for name in found} == found
    assert config.given == set(asked)


@pytest.mark.parametrize("asked", [{"score_layers": [3], "score_depth": 0.5}, {"window": 64, "chunk_size": 128}])
def test_it_is_refused_for_what_it_asked(asked):
    for base in (SpecPrefillConfig(), SpecPrefillConfig(window=512)):
        with pytest.raises(RequestError, match="^(score_depth|window): found"):
            SpecPrefillConfig.from_dict(asked, base)


@pytest.mark.parametrize("chunk_size", ["a", 0, None])
def test_a_bad_value_is_named_before_anything_gives_way(chunk_size):
    with pytest.raises(RequestError, match="^chunk_size: found"):
        SpecPrefillConfig.from_dict({"chunk_size": chunk_size}, SpecPrefillConfig(window=64))


def test_requests():
    defaults = Defaults(spec=SpecPrefillConfig(keep_ratio=0.2, lookahead=3))

    def given(**asked: object) -> set[str]:
        return parse_chat({"messages": HELLO, **asked}, defaults).specprefill.settings.given

    assert given(specprefill={"select_mode": "mass"}) == {"select_mode"}
    assert given(specprefill={"scorer": "self", "lookahead": 2}) == {"scorer", "lookahead"}
    assert given(specprefill_keep_pct=20) == {"keep_ratio", "select_mode"}
    assert given(specprefill_keep_pct=20, speculative_prefill_keep_pct=0.2, specprefill={"keep_ratio": 0.2})


@pytest.mark.parametrize(
    "asked",
    [
        {"specprefill_keep_pct": 20, "speculative_prefill_keep_pct": 30},
        {"specprefill_keep_pct": 20, "specprefill": {"keep_ratio": 0.3}},
        {"speculative_prefill_keep_pct": 20, "specprefill": {"select_mode": "mass"}},
    ],
)
def test_two_shares_in_one_request(asked):
    with pytest.raises(
        ApiError, match=r"^spec.*_keep_pct: found (20|30), which is .*, beside .*, wanted one"
    ) as refused:
        parse_chat({"messages": HELLO, **asked}, Defaults(spec=SpecPrefillConfig()))
    assert refused.value.status == 400 and refused.value.param in asked


def arguments(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="test")
    add_specprefill_options(parser)
    return parser.parse_args(argv)


def test_flags_and_variables_are_named_as_they_were_given():
    args = arguments("--specprefill-keep-ratio", "0.2", "--specprefill-check-share", "0.1")
    env = {"SP_LOOKAHEAD": "3", "SP_WINDOW": "64", "SP_KEEP_PCT": "0.4"}
    assert unused_settings(args, all_settings(args, env), [BY_SELF], env) == [
        "--specprefill-keep-ratio: not used, counts with select_mode chunk only",
        "SP_LOOKAHEAD, SP_WINDOW: not used, counts with a draft only",
        "--specprefill-check-share: not used, check is off",
    ]
    assert unused_settings(arguments(), all_settings(arguments(), {}), [BY_DRAFT]) == []
    preset = arguments("--specprefill-preset", "fork")
    assert unused_settings(preset, all_settings(preset, env), [BY_DRAFT], env) == [
        "SP_KEEP_PCT, SP_LOOKAHEAD, SP_WINDOW: not used, --specprefill-preset stands in place of variables"
    ]


def test_errors_name_the_flag_or_variable():
    args = arguments("--specprefill-score-layers", "77")
    assert named_as_asked(args, RequestError("score_layers: 77 has"), {}) == "--specprefill-score-layers: 77 has"
    assert named_as_asked(args, RequestError("window: 5: x"), {"SP_WINDOW": "5"}) == "SP_WINDOW: 5: x"
    for text in ("window: found 5", "tail", "-c: 0", "no such thing"):  # nobody asked for these
        assert named_as_asked(args, RequestError(text), {}) == text
    assert named_as_asked(args, RequestError("score_layer: 7")) == "score_layer: 7"  # the process's own environment
    assert named_as_asked(argparse.Namespace(), RequestError("window: 5"), {"SP_WINDOW": "5"}) == "window: 5"
    sampling = argparse.Namespace(temp=-1.0, top_k=None)
    assert named_as_asked(sampling, RequestError("temperature: found -1"), {}) == "--temp: found -1"
    assert named_as_asked(sampling, RequestError("top_k: found -1"), {}) == "top_k: found -1"  # the file's


def test_unknown_variables(caplog):
    env = {"SP_KEEP_PC": "0.2", "SP_CHUNK": "8", "SPX": "1", "PATH": "/"}
    with caplog.at_level(logging.WARNING, "vkprefill"):
        for _ in range(2):  # said once
            SpecPrefillConfig.from_environment(env)
    assert caplog.messages == ["SP_KEEP_PC: not used, no variable has this name; the nearest is SP_KEEP_PCT"]


@pytest.mark.parametrize(
    ("settings", "num_tokens", "protected", "said"),
    [
        ({"keep_ratio": 0.5}, 2000, (), ""),
        ({"keep_ratio": 0.01}, 2000, (), ", 96 of them since at least 128 are kept (a tenth, but 4 to 128)"),
        ({"keep_ratio": 0.2}, 200, ((50, 150),), "; 106 of them are kept in any case, more than the share 0.2"),
        ({"keep_ratio": 0.01, "max_keep": 50}, 2000, (), "; max_keep 50 left out 96 more"),
        ({"max_keep": 3, "keep_ratio": 0.9}, 200, (), "; 6 of them are kept in any case, more than max_keep 3; max"),
        ({"select_mode": "mass", "cumulative_mass": 0.01}, 2000, (), ", 96 of them since at least 128 are kept"),
    ],
)
def test_what_is_kept_beyond_the_share_is_said(settings, num_tokens, protected, said):
    config = SpecPrefillConfig(**{"select_mode": "chunk", "chunk_align": "tokens", **settings})
    found = select(np.ones(num_tokens), config, protected=protected)
    reason = choice_reason(found, num_tokens, config, "the draft")
    assert reason.startswith(f"the draft chose {len(found.kept)} of {num_tokens} new tokens{said}")
    assert bool(said) or reason.endswith("new tokens")


def test_fields_in_the_list_are_settings():
    assert ALL == tuple(setting.name for setting in fields(SpecPrefillConfig))
