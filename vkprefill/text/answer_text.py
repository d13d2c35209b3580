"""The text of an answer, piece by piece -> reasoning, content and tool calls, as soon as it is clear what a piece is.

An answer is reasoning up to </think> where the prompt ends in <think> or the answer starts with it; then content, with
tool calls where the request has tools. However the text is cut into pieces, the parts add up to the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vkprefill.text.stop_strings import held_length
from vkprefill.text.tool_calls import CLOSE, OPEN, ToolCall, parse_tool_call

OPEN_THINKING, CLOSE_THINKING = "<think>", "</think>"


@dataclass(frozen=True)
class Delta:
    """One of the three."""

    content: str = ""
    reasoning: str = ""
    call: ToolCall | None = None


class AnswerText:
    """Feed it pieces with push, end with finish. thinking: the prompt opens the reasoning; tools: None to leave
    tool calls in the content."""

    def __init__(self, *, thinking: bool, tools: Sequence[Mapping[str, object]] | None) -> None:
        self._tools = tools
        self._read = self._reasoning if thinking else self._start
        self._text = ""  # not given out yet
        self._begun = False  # some of this stretch of reasoning or content was given out
        self.num_calls = 0

    def push(self, text: str) -> list[Delta]:
        self._text += text
        return self._run(final=False)

    def finish(self) -> list[Delta]:
        """What was kept back."""
        return self._run(final=True)

    def _run(self, final: bool) -> list[Delta]:
        deltas: list[Delta] = []
        while True:
            read = self._read
            deltas += read(final)
            if self._read == read:
                return deltas

    # Each reader takes what it can from the text; one that is done names the next.

    def _start(self, final: bool) -> list[Delta]:
        """Does the answer start with <think>?"""
        body = self._text.lstrip()
        if body.startswith(OPEN_THINKING):
            self._text, self._read = body.removeprefix(OPEN_THINKING), self._reasoning
        elif final or not OPEN_THINKING.startswith(body):
            self._begun, self._read = True, self._content  # leading white space is the answer's own
        return []

    def _reasoning(self, final: bool) -> list[Delta]:
        text = self._text if self._begun else self._text.lstrip("\n")
        before, closed, after = text.partition(CLOSE_THINKING)
        if closed:
            self._text, self._read, self._begun = after, self._content, False
            shown = before.rstrip("\n")
        else:
            held = 0 if final else held_length(text, CLOSE_THINKING)
            shown = text[: len(text) - held].rstrip("\n")
            self._text = "" if final else text[len(shown) :]
            self._begun = self._begun or bool(shown)
        return [Delta(reasoning=shown)] if shown else []

    def _content(self, final: bool) -> list[Delta]:
        text = self._text if self._begun else self._text.lstrip("\n")
        if self._tools is None:
            shown, self._text = text, ""
        elif OPEN in text:
            shown, _, self._text = text.partition(OPEN)
            shown, self._read = shown.rstrip(), self._call
        else:
            held = 0 if final else held_length(text, OPEN)
            shown = text[: len(text) - held]
            if not final or self.num_calls:
                shown = shown.rstrip()  # white space before a call is not content
            self._text = "" if final else text[len(shown) :]
        self._begun = self._begun or bool(shown)
        return [Delta(content=shown)] if shown else []

    def _call(self, final: bool) -> list[Delta]:
        body, closed, after = self._text.partition(CLOSE)
        if not closed and not final:
            return []
        call = parse_tool_call(body, self._tools)
        while call is None and closed and CLOSE in after:  # the text </tool_call> inside of a value
            more, _, after = after.partition(CLOSE)
            body += CLOSE + more
            call = parse_tool_call(body, self._tools)
        if call is None and closed and not final:
            return []
        self._text, self._read, self._begun = after, self._content, False
        if call is None:
            return [Delta(content=OPEN + body + closed)]
        self.num_calls += 1
        return [Delta(call=call)]
