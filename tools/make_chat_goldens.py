#!/usr/bin/env python3
"""Write tests/data/chat/goldens.json: Qwen3.5's chat template as Hugging Face's transformers renders it.

    pip install transformers jinja2
    python tools/make_chat_goldens.py

Each entry: name, messages, arguments (tools, enable_thinking, ...), and text or error, the template's own message.
"""

import json
from pathlib import Path

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "chat"
TEMPLATE = FOLDER / "Qwen3.5-4B.jinja"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather <now> & here, in \u00b0C",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "M\u00fcnchen, \u6771\u4eac"},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def user(content: object) -> dict:
    return {"role": "user", "content": content}


def system(content: object) -> dict:
    return {"role": "system", "content": content}


def assistant(content: object, **fields: object) -> dict:
    return {"role": "assistant", "content": content, **fields}


def tool(content: object) -> dict:
    return {"role": "tool", "content": content}


def call(name: str, **arguments: object) -> dict:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def text_part(text: str) -> dict:
    return {"type": "text", "text": text}


HELLO = user("Hello")
THOUGHT = "<think>\nA greeting.\n\nBe kind.\n</think>\n\nHi there."
TOOL_TURN = [
    user("Weather in M\u00fcnchen?"),
    assistant(
        "Let me look.",
        tool_calls=[call("get_weather", city="M\u00fcnchen", days=2, hourly=True, units={"t": "\u00b0C"})],
    ),
    tool('{"t": 21.5}'),
]

CASES: list[tuple[str, list[dict], dict]] = [
    ("one turn, default", [HELLO], {}),
    ("thinking on", [HELLO], {"enable_thinking": True}),
    ("thinking off", [HELLO], {"enable_thinking": False}),
    ("no generation prompt", [HELLO], {"add_generation_prompt": False}),
    ("system", [system("  Be brief.\n"), HELLO], {}),
    ("empty system", [system(""), HELLO], {}),
    ("white space is stripped", [user("\n\t  padded \u00a0\n ")], {}),
    ("empty user", [user("")], {}),
    ("no content", [{"role": "user"}], {}),
    ("null content", [user(None)], {}),
    (
        "NUL, emoji and scripts",
        [user("a\u0000b \U0001f469\u200d\U0001f680 \u65e5\u672c\u8a9e \u0639\u0631\u0628\u064a e\u0301")],
        {},
    ),
    ("HTML is not escaped", [user("<b>1 & 2</b> \"quoted\" 'single'")], {}),
    ("braces stay text", [user("{{ 7 * 7 }} {% for %} {# no comment #}")], {}),
    ("content parts", [user([text_part("first "), text_part("second")])], {}),
    ("system parts", [system([text_part("Be "), text_part("brief.")]), HELLO], {}),
    ("several turns", [HELLO, assistant("Hi."), user("And?"), assistant("More."), user("Go on")], {}),
    ("history loses thoughts", [HELLO, assistant(THOUGHT), user("And?")], {}),
    ("last answer keeps thoughts", [HELLO, assistant(THOUGHT)], {"add_generation_prompt": False}),
    ("thought without start", [HELLO, assistant("A greeting.</think>Hi.")], {"add_generation_prompt": False}),
    ("start without end", [HELLO, assistant("<think>A greeting. Hi.")], {"add_generation_prompt": False}),
    ("two thoughts", [HELLO, assistant("<think>a</think>b<think>c</think>d")], {"add_generation_prompt": False}),
    ("answer in parts", [HELLO, assistant([text_part("<think>a</think>"), text_part("b")])], {}),
    (
        "reasoning_content",
        [HELLO, assistant("Hi.", reasoning_content=" A greeting. ")],
        {"add_generation_prompt": False},
    ),
    ("reasoning", [HELLO, assistant("Hi.", reasoning="A greeting.")], {"add_generation_prompt": False}),
    ("reasoning_content in history", [HELLO, assistant("Hi.", reasoning_content="A greeting."), user("And?")], {}),
    ("tools", [HELLO], {"tools": [WEATHER, CLOCK]}),
    ("tools, thinking off", [HELLO], {"tools": [CLOCK], "enable_thinking": False}),
    ("tools and system", [system("Be brief."), HELLO], {"tools": [WEATHER]}),
    ("no tools", [HELLO], {"tools": []}),
    ("tool result", TOOL_TURN, {"tools": [WEATHER]}),
    (
        "tool result with thoughts",
        [TOOL_TURN[0], assistant(THOUGHT, tool_calls=[call("clock")]), tool("noon")],
        {"tools": [CLOCK]},
    ),
    ("call without content", [HELLO, assistant("", tool_calls=[call("clock")]), tool("noon")], {"tools": [CLOCK]}),
    ("null content in a call", [HELLO, assistant(None, tool_calls=[call("clock")]), tool("noon")], {}),
    (
        "two calls, two results",
        [HELLO, assistant("", tool_calls=[call("clock"), call("f", x=[1, "\u00e9"])]), tool("noon"), tool("2")],
        {},
    ),
    ("call without function", [HELLO, assistant("", tool_calls=[{"name": "clock", "arguments": {"n": None}}])], {}),
    ("answer after a tool", [*TOOL_TURN, assistant("21.5 \u00b0C."), user("Thanks")], {"tools": [WEATHER]}),
    ("image", [user([{"type": "image", "image": "a.png"}, text_part("What is it?")])], {}),
    (
        "images with numbers",
        [user([{"type": "image_url", "image_url": "x"}, {"type": "image"}, {"type": "video"}])],
        {"add_vision_id": True},
    ),
    ("error: no messages", [], {}),
    ("error: no user", [system("Be brief.")], {}),
    ("error: late system", [HELLO, system("Be brief.")], {}),
    ("error: role", [HELLO, {"role": "critic", "content": "No."}], {}),
    ("error: part", [user([{"type": "audio", "audio": "a.wav"}])], {}),
    ("error: content", [user(7)], {}),
    ("error: image in system", [system([{"type": "image"}]), HELLO], {}),
    (
        "error: arguments as text",
        [HELLO, assistant("", tool_calls=[{"function": {"name": "f", "arguments": "{}"}}])],
        {},
    ),
]


def golden(name: str, messages: list[dict], arguments: dict) -> dict:
    options = {"add_generation_prompt": True, **arguments}
    entry = {"name": name, "messages": messages, "arguments": arguments}
    try:
        texts, _ = render_jinja_template(conversations=[messages], chat_template=TEMPLATE.read_text(), **options)
    except (jinja2.TemplateError, TypeError) as error:
        return {**entry, "error": str(error)}
    return {**entry, "text": texts[0]}


def main() -> None:
    goldens = {
        "made_with": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}",
        "cases": [golden(*case) for case in CASES],
    }
    (FOLDER / "goldens.json").write_text(json.dumps(goldens, indent=1) + "\n")


if __name__ == "__main__":
    main()
