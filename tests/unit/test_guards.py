"""The guards: what makes a prompt one with tools, and the arithmetic of break-even by hand."""

import pytest

from vkprefill.errors import VkPrefillError
from vkprefill.specprefill import guards
from vkprefill.specprefill.guards import break_even, estimate_kept, min_tokens_guard, tool_guard
from vkprefill.specprefill.settings import SpecPrefillConfig

SPEEDS = {"draft_tokens_per_s": 1000.0, "draft_decode_tokens_per_s": 50.0, "target_tokens_per_s": 250.0}


def test_statuses():
    assert guards.STATUSES == (
        "disabled", "skipped_tool_guard", "skipped_min_tokens", "skipped_break_even", "kept_all", "active", "failed"
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({}, None),
        ({"tools": [], "grammar": "", "roles": ["system", "user", "assistant"], "head_text": "a function"}, None),
        ({"tools": [{"type": "function"}]}, "the request has tools"),
        ({"grammar": "root ::= x"}, "the request has a grammar"),
        ({"roles": ["user", "tool", "user"]}, "a message has the role tool"),
        ({"roles": iter(["tool"])}, "a message has the role tool"),
        ({"head_text": '{"type": "function"}'}, 'the first 256 tokens hold "function"'),
        ({"head_text": 'x "tool": y'}, 'hold "tool"'),
        ({"head_text": '{"tools": []}'}, 'hold "tools"'),
        ({"head_text": "<tool_call>"}, "hold <tool_call>"),
        ({"head_text": "call get_weather"}, "hold get_"),
        ({"head_text": "call set_light"}, "hold set_"),
        ({"head_text": "call search_web"}, "hold search_"),
        ({"head_text": "the target_ratio"}, "hold get_"),  # words are matched as they stand
        ({"head_text": "tool 'tools' function Get_ <TOOL_CALL>"}, None),
    ],
)
def test_tool_guard(arguments, reason):
    found = tool_guard(**arguments)
    assert found is None if reason is None else reason in found


def test_min_tokens_guard():
    assert min_tokens_guard(0, 0) is None
    assert min_tokens_guard(8192, 8192) is None
    assert min_tokens_guard(8191, 8192) == "8191 new tokens, below min_tokens 8192"


@pytest.mark.parametrize(
    "settings, mean_share, expected",
    [
        ({}, None, 1200),  # 0.3 of 4000
        ({}, 0.25, 1000),
        ({}, 0.75, 2000),  # max_keep
        ({"max_keep": 0}, 0.75, 3000),
        ({"max_keep": 500}, None, 500),
        ({"keep_ratio": 1.0}, 0.25, 4000),  # keeps all, whatever max_keep is
    ],
)
def test_estimate_kept(settings, mean_share, expected):
    assert estimate_kept(4000, SpecPrefillConfig(**settings), mean_share) == pytest.approx(expected)


def test_break_even_by_hand():
    # scoring 4000 / 1000 + 8 / 50 = 4.16 s; saving (4000 - 1000) / 250 = 12 s; 12 / 4.16 = 2.88
    found = break_even(4000, 1000, 8, **SPEEDS, safety=1.2)
    assert found == (True, pytest.approx(4.16), pytest.approx(12.0))
    assert found.worth and not break_even(4000, 1000, 8, **SPEEDS, safety=2.9).worth
    assert break_even(4000, 1000, 8, **SPEEDS, safety=2.88).worth


def test_break_even_needs_more_than_the_scoring():
    # scoring 1000 / 1000 = 1 s, saving (1000 - 750) / 250 = 1 s: equal is not worth it
    assert break_even(1000, 750, 0, **SPEEDS, safety=1.0) == (False, 1.0, 1.0)
    assert break_even(1000, 749, 0, **SPEEDS, safety=1.0).worth


def test_break_even_of_nothing_new():
    assert break_even(0, 0, 0, **SPEEDS, safety=1.2) == (False, 0, 0)
    assert not break_even(100, 200, 0, **SPEEDS, safety=0).worth  # saving below 0


@pytest.mark.parametrize("name", SPEEDS)
@pytest.mark.parametrize("speed", [0, -1.0, float("nan")])
def test_break_even_refuses_speeds(name, speed):
    with pytest.raises(VkPrefillError, match=f"{name}: found {speed}, wanted a number above 0"):
        break_even(1000, 100, 8, **{**SPEEDS, name: speed}, safety=1.2)
