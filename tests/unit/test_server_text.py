"""Stop texts, reasoning and tool calls found in an answer that comes in pieces, however it is cut."""

import itertools
import json
import random

import pytest

from vkprefill.text.answer_text import AnswerText
from vkprefill.text.stop_strings import StopStrings
from vkprefill.text.tool_calls import parse_tool_call

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "lines": {"type": "integer"},
                    "tags": {"type": "array"},
                    "force": {"type": "boolean"},
                    "note": {"type": ["string", "null"]},
                },
            },
        },
    }
]
CALL = (
    "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n"
    "<parameter=lines>\n3\n</parameter>\n</function>\n</tool_call>"
)


def cuts(text: str, seed: int) -> list[str]:
    """The text in random pieces, some of them one character, some empty."""
    random_ = random.Random(seed)
    pieces = []
    while text:
        length = random_.choice([0, 1, 1, 2, 3, 7, 20])
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def stopped(pieces: list[str], *stops: str) -> tuple[str, str | None]:
    matcher, shown = StopStrings(stops), []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.found is not None:
            break
    return "".join(shown) + ("" if matcher.found else matcher.finish()), matcher.found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("text", "stops", "shown", "found"),
    [
        ("one two three", ("two",), "one ", "two"),
        ("one two three", ("four",), "one two three", None),
        ("ababac", ("abac",), "ab", "abac"),
        ("aab", ("ab", "b"), "a", "ab"),
        ("x\n\ny", ("\n\n",), "x", "\n\n"),
        ("ends in a beginning of st", ("stop",), "ends in a beginning of st", None),
        ("stop", ("stop",), "", "stop"),
        ("none", (), "none", None),
        ("h\u00e9llo w\u00f6rld", ("\u00f6r",), "h\u00e9llo w", "\u00f6r"),
    ],
)
def test_stop_texts(text, stops, shown, found, seed):
    assert stopped(cuts(text, seed), *stops) == (shown, found)


def test_text_is_shown_as_soon_as_it_cannot_be_a_stop():
    matcher = StopStrings(["END"])
    assert [matcher.push(p) for p in ("a", "E", "N", "x", "EN")] == ["a", "", "", "ENx", ""]
    assert matcher.holds and matcher.finish() == "EN"


def parsed(
    pieces: list[str], *, thinking: bool = False, tools: list | None = None, **options: bool
) -> tuple[str, str, list]:
    """(reasoning, content, calls as (name, arguments))"""
    text = AnswerText(thinking=thinking, tools=tools, **options)
    deltas = [delta for piece in pieces for delta in text.push(piece)] + text.finish()
    assert all([bool(d.content), bool(d.reasoning), d.call is not None].count(True) == 1 for d in deltas)
    calls = [(d.call.name, d.call.arguments) for d in deltas if d.call]
    assert text.num_calls == len(calls)
    return "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas), calls


ARGUMENTS = {"path": "a.txt", "lines": 3}


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize(
    ("text", "thinking", "tools", "want"),
    [
        ("plain", False, None, ("", "plain", [])),
        (" leading", False, None, ("", " leading", [])),
        ("why\n</think>\n\nbecause", True, None, ("why", "because", [])),
        ("\nwhy\nand\n\nhow\n", True, None, ("why\nand\n\nhow", "", [])),
        ("</think>\n\nat once", True, None, ("", "at once", [])),
        ("<think>\nwhy\n</think>\n\nbecause\n", False, None, ("why", "because\n", [])),
        ("\n<think>why</think>x", False, None, ("why", "x", [])),
        ("<thinking aloud", False, None, ("", "<thinking aloud", [])),
        ("a </think> b", False, None, ("", "a </think> b", [])),
        ("why</thi", True, None, ("why</thi", "", [])),
        (CALL, False, TOOLS, ("", "", [("write", ARGUMENTS)])),
        ("I write.\n\n" + CALL, False, TOOLS, ("", "I write.", [("write", ARGUMENTS)])),
        ("why\n</think>\n\n" + CALL + "\n" + CALL, True, TOOLS, ("why", "", [("write", ARGUMENTS)] * 2)),
        (CALL + "\n\n", False, TOOLS, ("", "", [("write", ARGUMENTS)])),
        (CALL + "\nDone.", False, TOOLS, ("", "Done.", [("write", ARGUMENTS)])),
        (CALL, False, None, ("", CALL, [])),
        ("text \n", False, TOOLS, ("", "text \n", [])),
        ("a <tool_ b", False, TOOLS, ("", "a <tool_ b", [])),
        ("<tool_call>\nnonsense\n</tool_call>", False, TOOLS, ("", "<tool_call>\nnonsense\n</tool_call>", [])),
        (CALL[:60], False, TOOLS, ("", CALL[:60], [])),
        (CALL.removesuffix("</tool_call>"), False, TOOLS, ("", "", [("write", ARGUMENTS)])),
        ("<tool_call>x</tool_call> and on", False, TOOLS, ("", "<tool_call>x</tool_call> and on", [])),
        ("<tool_call>x</tool_call>" + CALL, False, TOOLS, ("", "<tool_call>x</tool_call>", [("write", ARGUMENTS)])),
        ("<tool_call>" + CALL, False, TOOLS, ("", "<tool_call>", [("write", ARGUMENTS)])),
        ("<tool_call>\n" + CALL, False, TOOLS, ("", "<tool_call>", [("write", ARGUMENTS)])),
        (" \n \n a", False, TOOLS, ("", " \n \n a", [])),
        ("a \n \n" + CALL + " \n \n", False, TOOLS, ("", "a", [("write", ARGUMENTS)])),
    ],
)
def test_answers(text, thinking, tools, want, seed):
    assert parsed(cuts(text, seed), thinking=thinking, tools=tools) == want


def test_content_does_not_wait_for_the_end():
    text = AnswerText(thinking=False, tools=TOOLS)
    assert [d.content for d in text.push("Hello, world")] == ["Hello, world"]
    assert text.push(" <too") == [] and [d.content for d in text.push("th")] == [" <tooth"]


def test_what_is_no_call_does_not_stall_the_stream():
    text = AnswerText(thinking=False, tools=TOOLS)
    assert [d.content for d in text.push("<tool_call>x</tool_call> y")] == ["<tool_call>", "x</tool_call> y"]
    assert [d.content for d in text.push(" z")] == [" z"]
    (call,) = text.push("\n" + CALL)
    assert call.call.arguments == ARGUMENTS, "as soon as it is closed"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("text", "thinking", "tools", "want"),
    [
        ("\n\n and on", False, None, ("", "\n\n and on", [])),
        ("<think> as text", False, TOOLS, ("", "<think> as text", [])),
        ("\nwhy\n</think>\n\nso", True, None, ("\nwhy", "so", [])),
        (" on\n" + CALL, False, TOOLS, ("", " on", [("write", ARGUMENTS)])),
    ],
)
def test_answers_that_go_on(text, thinking, tools, want, seed):
    assert parsed(cuts(text, seed), thinking=thinking, tools=tools, continued=True) == want


@pytest.mark.parametrize("thinking", [True, False])
def test_reasoning_left_in_the_content(thinking):
    for seed in range(5):
        found = parsed(cuts("\nwhy\n</think>\n\nso\n" + CALL, seed), thinking=thinking, tools=TOOLS, split=False)
        assert found == ("", "\nwhy\n</think>\n\nso", [("write", ARGUMENTS)])


NUM_TAGS = 20_000
LONG_TEXTS = {
    "parameters": "<tool_call><function=f>" + "<parameter=a>" * NUM_TAGS,
    "values": "<tool_call><function=f>" + "<parameter=a>1</parameter>" * NUM_TAGS,
    "calls": "<tool_call><function=f><parameter=a>" * NUM_TAGS + "</parameter>" * NUM_TAGS,
    "closed calls": "<tool_call>x</tool_call>" * NUM_TAGS,
    "a name": "<tool_call><function=" + "f" * NUM_TAGS,
    "ends": "<tool_call><function=f><parameter=a>" + "</parameter>\n</function>\n" * NUM_TAGS,
    "white space": "a" + " \n" * NUM_TAGS,
    "white space first": " \n" * NUM_TAGS,
    "line ends in reasoning": "<think>why" + "\n" * NUM_TAGS,
}


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_work_is_linear_in_the_text(name):
    """What took hours with work by the square takes a second: whole, and in pieces of a token's size."""
    text = LONG_TEXTS[name]
    whole = parsed([text], tools=TOOLS)
    assert whole == parsed([text[at : at + 7] for at in range(0, len(text), 7)], tools=TOOLS)
    assert "".join(whole[:2]) or whole[2]


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("path", "5", "5"),
        ("path", "", ""),
        ("path", "two\nlines", "two\nlines"),
        ("path", "  kept  ", "  kept  "),
        ("path", "a </parameter> b", "a </parameter> b"),
        ("path", '{"not": "parsed"}', '{"not": "parsed"}'),
        ("lines", "5", 5),
        ("lines", "five", "five"),
        ("tags", '["a", 1]', ["a", 1]),
        ("force", "true", True),
        ("force", "True", True),
        ("note", "null", None),
        ("note", "text", "text"),
        ("unknown", "7", "7"),
        ("lines", "NaN", "NaN"),
        ("lines", "-Infinity", "-Infinity"),
        ("lines", "1e999", "1e999"),
        ("tags", "[NaN]", "[NaN]"),
        ("tags", r'["\ud800"]', r'["\ud800"]'),
        ("path", "a </parameter></function> b </tool_call> c", "a </parameter></function> b </tool_call> c"),
        ("path", "a <parameter=b> c", "a <parameter=b> c"),
        ("path", "\n", "\n"),
    ],
)
def test_values(name, written, value):
    call = parse_tool_call(f"\n<function=write>\n<parameter={name}>\n{written}\n</parameter>\n</function>\n", TOOLS)
    assert call.arguments == {name: value}
    arguments = call.as_dict()["function"]["arguments"]
    assert json.loads(arguments, parse_constant=pytest.fail) == {name: value} and arguments.encode()


def test_calls():
    assert parse_tool_call("<function=now>\n</function>", TOOLS).arguments == {}
    assert parse_tool_call("<function=other>\n<parameter=x>\n1\n</parameter>\n</function>", TOOLS).arguments == {
        "x": "1"
    }
    ids = {parse_tool_call("<function=now></function>", TOOLS).as_dict()["id"] for _ in range(9)}
    assert len(ids) == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        '{"name": "now"}',
        "<function=>",
        "<function= >",
        "<function=f>\nstray text\n</function>",
        "<function=f>\n</function>\nstray text",
        "<function=f",
        "<function=f\n>",
        "<function=f>\n<parameter=a>\n1\n</function>",
        "<function=f>\n<parameter=a>\n1\n</parameter>\nstray text\n</function>",
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</func",
        "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b\n",
    ],
)
def test_no_calls(text):
    assert parse_tool_call(text, TOOLS) is None


def test_closing_tag_inside_a_value():
    inside = CALL.replace("a.txt", "the tag </tool_call> ends a call")
    for seed in range(15):
        assert parsed(cuts(inside, seed), tools=TOOLS)[2] == [
            ("write", {**ARGUMENTS, "path": "the tag </tool_call> ends a call"})
        ]


def test_arbitrary_text_is_never_lost():
    """Whatever pieces of markup come in whatever order: no exception, and what is no markup comes out."""
    words = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<function=write>", "</function>", "word", "\n"]
    for order in itertools.permutations(words, 4):
        for thinking in (False, True):
            reasoning, content, _ = parsed(list(order), thinking=thinking, tools=TOOLS)
            assert ("word" in order) <= ("word" in reasoning + content)
