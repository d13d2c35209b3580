"""The guards: what makes a prompt one with tools, and the arithmetic of break-even by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from vkprefill.errors import VkPrefillError
from vkprefill.specprefill import guards
from vkprefill.specprefill.guards import (
    TOOL_WORDS,
    RequestFacts,
    Speeds,
    break_even,
    min_tokens_guard,
    tool_guard,
)

SPEEDS = Speeds(draft_tokens_per_s=1000.0, draft_decode_tokens_per_s=50.0, target_tokens_per_s=250.0)


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
        ({"roles": ("tool",)}, "a message has the role tool"),
        ({"head_text": '{"type": "function"}'}, 'the first 256 tokens hold "function"'),
        ({"head_text": 'x "tool": y'}, 'hold "tool"'),
        ({"head_text": '{"tools": []}'}, 'hold "tools"'),
        ({"head_text": "<tool_call>"}, "hold <tool_call>"),
        ({"head_text": "call get_weather"}, "hold get_"),
        ({"head_text": "call set_light"}, "hold set_"),
        ({"head_text": "call search_web"}, "hold search_"),
        ({"head_text": "tool 'tools' function Get_ <TOOL_CALL>"}, None),
    ],
)
@pytest.mark.parametrize("match", ["words", "substrings"])
def test_tool_guard(arguments, reason, match):
    arguments = dict(arguments)
    head_text = arguments.pop("head_text", "")
    found = tool_guard(RequestFacts(**arguments), head_text, match)
    assert found is None if reason is None else reason in found


WITHIN = [
    "target_ratio",
    "widget_list",
    "budget_2026",
    "a_get_x",
    "2get_x",
    "reset_all",
    "offset_n",
    "research_plan",
    "éget_",
]
BEGINS = [
    "get_time",
    "(get_time)",
    "self.get_time()",
    "a-set_light",
    "\nsearch_web",
    "the get_ family",
    "target_ get_x",
    "`set_a`",
]


@pytest.mark.parametrize("text", WITHIN)
def test_a_tool_word_within_another_word_is_none(text):
    assert tool_guard(RequestFacts(), f"x {text} y") is None
    assert tool_guard(RequestFacts(), text) is None
    assert "the first 256 tokens hold " in tool_guard(RequestFacts(), f"x {text} y", "substrings")


@pytest.mark.parametrize("text", BEGINS)
def test_a_tool_word_that_begins_a_word(text):
    for match in ("words", "substrings"):
        assert "the first 256 tokens hold " in tool_guard(RequestFacts(), text, match)


@pytest.mark.parametrize("text", ['x"tool"y', 'a"function":', '_"tools"', "x<tool_call>y"])
def test_tool_words_with_borders_of_their_own(text):
    assert "hold " in tool_guard(RequestFacts(), text)


def test_min_tokens_guard():
    assert min_tokens_guard(0, 0) is None
    assert min_tokens_guard(8192, 8192) is None
    assert min_tokens_guard(8191, 8192) == "8191 new tokens, below min_tokens 8192"


def test_break_even_by_hand():
    # scoring 4000 / 1000 + 8 / 50 = 4.16 s; saving (4000 - 1000) / 250 = 12 s; 12 / 4.16 = 2.88
    found = break_even(4000, 1000, 8, SPEEDS, safety=1.2)
    assert found == (True, pytest.approx(4.16), pytest.approx(12.0))
    assert found.worth and not break_even(4000, 1000, 8, SPEEDS, safety=2.9).worth
    assert break_even(4000, 1000, 8, SPEEDS, safety=2.88).worth


def test_break_even_needs_more_than_the_scoring():
    # scoring 1000 / 1000 = 1 s, saving (1000 - 750) / 250 = 1 s: equal is not worth it
    assert break_even(1000, 750, 0, SPEEDS, safety=1.0) == (False, 1.0, 1.0)
    assert break_even(1000, 749, 0, SPEEDS, safety=1.0).worth


def test_break_even_of_nothing_new():
    assert break_even(0, 0, 0, SPEEDS, safety=1.2) == (False, 0, 0)
    assert not break_even(100, 200, 0, SPEEDS, safety=0).worth  # saving below 0


@pytest.mark.parametrize("name", vars(SPEEDS))
@pytest.mark.parametrize("speed", [0, -1.0, float("nan")])
def test_break_even_refuses_speeds(name, speed):
    with pytest.raises(VkPrefillError, match=f"{name}: found {speed}, wanted a number above 0"):
        replace(SPEEDS, **{name: speed})


def test_the_documents_name_the_tool_words():
    page = (Path(__file__).parents[2] / "docs" / "specprefill.md").read_text()
    assert [word for word in TOOL_WORDS if f"`{word}`" not in page] == []
