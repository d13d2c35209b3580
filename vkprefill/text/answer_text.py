"""The text of an answer, piece by piece -> reasoning, content and tool calls, as soon as it is clear what a piece is.

An answer is reasoning up to </think> where the prompt ends in <think> or the answer starts with it; then content, with
tool calls where the request has tools. However the text is cut into pieces, the parts add up to the same. The work for
a piece is linear in the piece, whatever came before it, so that it may be done where others wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vkprefill.text.chat_template import CLOSE_THINKING, OPEN_THINKING
from vkprefill.text.stop_strings import held_length
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.text.tool_calls import OPEN, CallReader, ToolCall

MAX_PIECE = 512  # characters; longer pieces are cut: what stands behind a tag is copied at each tag


def ends_in_thinking(tokenizer: Tokenizer, token_ids: Sequence[int]) -> bool:
    """Whether the answer to a prompt begins inside of reasoning."""
    opened, closed = (tokenizer.special_tokens.get(tag) for tag in (OPEN_THINKING, CLOSE_THINKING))
    if opened is None or closed is None:
        return tokenizer.decode(token_ids[-8:]).rstrip().endswith(OPEN_THINKING)
    borders = (opened, closed, *tokenizer.eog_token_ids)  # the end of a message ends its reasoning
    return next((token_id for token_id in reversed(token_ids) if token_id in borders), None) == opened


@dataclass(frozen=True)
class Delta:
    """One of the three."""

    content: str = ""
    reasoning: str = ""
    call: ToolCall | None = None


class AnswerText:
    """Feed it pieces with push, end with finish.

    thinking: the prompt opens the reasoning; continued: and holds the beginning of what the answer goes on with; split:
    False to leave reasoning in the content; tools: None to leave tool calls there.
    """

    def __init__(
        self,
        *,
        thinking: bool,
        tools: Sequence[Mapping[str, object]] | None,
        continued: bool = False,
        split: bool = True,
    ) -> None:
        self._made_with = {"thinking": thinking, "tools": tools, "continued": continued, "split": split}
        self._tools = tools
        if not split or continued and not thinking:
            self._read = self._content
        else:
            self._read = self._reasoning if thinking else self._start
        self._begun = continued or not split  # some of this stretch of reasoning or content was given out
        self._text = ""  # not read yet
        self._blank: list[str] = []  # white space that was read: shown when more text follows
        self._call_reader: CallReader | None = None
        self.num_calls = 0

    def anew(self) -> AnswerText:
        """One for the same answer from its beginning."""
        return AnswerText(**self._made_with)

    def push(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        for at in range(0, len(text), MAX_PIECE):
            self._text += text[at : at + MAX_PIECE]
            deltas += self._run(final=False)
        return deltas

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
            self._blank.clear()
        elif not body and not final:
            self._blank.append(self._text)
            self._text = ""
        elif final or not OPEN_THINKING.startswith(body):
            self._text = "".join([*self._blank, self._text])
            self._blank.clear()
            self._begun, self._read = True, self._content  # leading white space is the answer's own
        return []

    def _reasoning(self, final: bool) -> list[Delta]:
        text = self._without_first_line_ends()
        before, closed, after = text.partition(CLOSE_THINKING)
        if closed:
            shown = self._show(before, "\n")
            self._text, self._read, self._begun = after, self._content, False
            self._blank.clear()
        else:
            held = 0 if final else held_length(text, CLOSE_THINKING)
            self._text = text[len(text) - held :]
            shown = self._show(text[: len(text) - held], "\n")
        return [Delta(reasoning=shown)] if shown else []

    def _content(self, final: bool) -> list[Delta]:
        text = self._without_first_line_ends()
        before, opened, after = (text, "", "") if self._tools is None else text.partition(OPEN)
        if self._tools is None:
            shown, self._text = text, ""
            self._begun = self._begun or bool(shown)
        elif opened:
            shown = self._show(before)
            self._blank.clear()  # white space before a call is not content
            self._text, self._read, self._call_reader = after, self._call, CallReader(self._tools)
        else:
            held = 0 if final else held_length(text, OPEN)
            self._text = text[len(text) - held :]
            shown = self._show(text[: len(text) - held])
            if final and not self.num_calls:
                shown += "".join(self._blank)
                self._blank.clear()
        return [Delta(content=shown)] if shown else []

    def _call(self, final: bool) -> list[Delta]:
        reader = self._call_reader
        reader.push(self._text)
        self._text = ""
        if final:
            reader.finish()
        if not reader.done:
            return []
        self._text, self._read, self._begun = reader.rest, self._content, False
        if reader.call is not None:
            self.num_calls += 1
            return [Delta(call=reader.call)]
        self._begun = True
        return [Delta(content=shown)] if (shown := self._show(OPEN + reader.taken)) else []

    def _without_first_line_ends(self) -> str:
        return self._text if self._begun or self._blank else self._text.lstrip("\n")

    def _show(self, text: str, blank: str | None = None) -> str:
        """The text that may be shown now: all but the white space (of the kind `blank`) at its end."""
        body = text.rstrip(blank)
        if not body:
            if text:
                self._blank.append(text)
            return ""
        shown = "".join([*self._blank, body])
        self._blank = [text[len(body) :]] if len(body) < len(text) else []
        self._begun = True
        return shown
