"""Messages -> token ids, through the Jinja template of a model's file.

Special tokens come from the template alone. Before rendering, the text of every special token in messages, tools and
other variables is broken by a marker, a private-use character that occurs nowhere else; the rendering is cut at the
special tokens it still shows, and then the markers are taken out of the text between them. A beginning of a special
token at the end of a string, and an end of one at its start, are broken too: strings that the template joins
cannot form one. The template may strip, split and compare as it likes: whatever it keeps, taking out the markers
restores it.

One exception: the content of assistant messages may hold the markup that a model writes into its answers
(ASSISTANT_MARKUP). Templates look for it there (Qwen3.5's splits at `</think>`), and an answer that is sent back gets
the tokens it had. Everywhere else a template's own tests for such text fail: a user's message in `<tool_response>`
tags, which Qwen3.5's would take for a tool's result, is a question like any other.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.text.tokenizer import Tokenizer, any_of, checked_text

OPEN_THINKING, CLOSE_THINKING = "<think>", "</think>"
ASSISTANT_MARKUP = (OPEN_THINKING, CLOSE_THINKING, "<tool_call>", "</tool_call>")

MARKERS = range(0xE000, 0xF900)  # Unicode's private-use area
MAX_DEPTH = 100  # of lists and dicts in messages
MAX_CHARS = 32 * 2**20  # of a rendering; the longest context has 262,144 tokens
MAX_BYTES = 2 * 2**30  # of memory for the process that renders
# The child runs our file with our import path, and nothing else of this program.
START_WORKER = "import runpy, sys; sys.path[:] = sys.argv[2:]; runpy.run_path(sys.argv[1], run_name='__main__')"
WORKER = Path(__file__).with_name("template_worker.py")

# A message's reasoning goes by several names; templates read the first, older ones the second.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
THOUGHT_KEYS = REASONING_KEYS[:2]  # under which `_normalised` gives it


def begun_answer(messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether the last message is the beginning of the answer: the assistant's, with text, and no call of a tool.

    Raises RequestError for what are no messages.
    """
    _check_messages(messages)
    last = messages[-1] if messages else {}
    has_text = any(last.get(key) for key in ("content", *REASONING_KEYS))
    return last.get("role") == "assistant" and has_text and not last.get("tool_calls")


class ChatTemplate:
    """A file's chat template. Safe to share between threads; a child process renders, from the first rendering on."""

    def __init__(self, source: str, tokenizer: Tokenizer, *, time_limit_s: float = 10.0) -> None:
        """Keep the template; it is compiled, and its syntax checked, by the first rendering.

        Args:
            source: the Jinja text, the file's `tokenizer.chat_template`.
            tokenizer: of the same file.
            time_limit_s: seconds a rendering may take before it is stopped.

        Raises:
            RequestError: `source` is not a str.
        """
        if not isinstance(source, str):
            raise RequestError(f"chat template: found {type(source).__name__}, wanted text")
        self._tokenizer = tokenizer
        self._source = source
        self._token_variables = _token_variables(tokenizer)
        self._renderer = _Renderer(source, time_limit_s)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], tokenizer: Tokenizer) -> ChatTemplate | None:
        """That of a file's metadata, None where it has none."""
        source = metadata.get("tokenizer.chat_template")
        return None if source is None else cls(source, tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        **kwargs: object,
    ) -> str:
        """The prompt as text, as Hugging Face's apply_chat_template(tokenize=False) gives it.

        Args:
            messages: dicts with "role" and "content" (JSON values); keys whose value is None are left out.
            tools: JSON schemas of functions the model may call.
            add_generation_prompt: whether the prompt ends where the assistant's answer starts.
            continue_final: whether the prompt ends with the text of the last message, so that the model goes on with
                it: with its content, or with its reasoning where there is no content yet. White space at the end of
                the text is kept. No generation prompt is added then.
            kwargs: further variables of the template, such as enable_thinking.

        Raises:
            RequestError: values that are not JSON or not UTF-8, and all errors of the template.
        """
        text, marker = self._render(messages, tools, add_generation_prompt, continue_final, kwargs)
        return text.replace(marker, "")

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        **kwargs: object,
    ) -> list[int]:
        """The prompt as token ids: special tokens where the template put them, plain text elsewhere. See `render`."""
        parts = self.parts(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, continue_final=continue_final, **kwargs
        )
        return self._tokenizer.encode_parts(parts)

    def parts(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        **kwargs: object,
    ) -> list[str | int]:
        """The prompt of `encode` before it is encoded: text and ids of special tokens in turn, for the tokenizer's
        `encode_parts`."""
        text, marker = self._render(messages, tools, add_generation_prompt, continue_final, kwargs)
        parts = self._tokenizer.split_special(text)
        return [part.replace(marker, "") if isinstance(part, str) else part for part in parts]

    def _render(
        self,
        messages: Sequence[object],
        tools: object,
        add_generation_prompt: bool,
        continue_final: bool,
        kwargs: dict[str, object],
    ) -> tuple[str, str]:
        """The rendering with its markers, and the marker."""
        _check_messages(messages)
        if tools is not None and not _is_list_of_objects(tools):
            raise RequestError("tools: wanted a list of objects")
        variables = _plain({"tools": tools, "documents": None, **kwargs})
        plain_messages = [_normalised(_plain(message)) for message in messages]
        special_texts = list(self._tokenizer.special_tokens)
        texts = [self._source, *special_texts, json.dumps([variables, plain_messages], ensure_ascii=False)]
        marker = _unused_character(texts)
        end = _unused_character([*texts, marker]) if continue_final else ""
        hider = _Hider(special_texts, marker)
        hidden = [hider.hide_in_message(message) for message in plain_messages]
        if continue_final and hidden:
            hidden[-1] = _ended(hidden[-1], end)
        context = {
            **self._token_variables,
            **hider.hide(variables),
            "messages": hidden,
            "add_generation_prompt": bool(add_generation_prompt) and not continue_final,
        }
        reply = self._renderer.render(context)
        if "error" in reply:
            raise RequestError(f"chat template: {printable(reply['error'].replace(marker, '').replace(end, ''), 500)}")
        text = reply["text"]
        if continue_final:
            text, found, _ = text.rpartition(end)
            if not found:
                raise RequestError("chat template: it leaves out the text of the last message, which cannot go on")
        return text, marker


class _Hider:
    """Breaks the text of special tokens in JSON values by putting the marker inside."""

    def __init__(self, special_texts: Sequence[str], marker: str) -> None:
        self._marker = marker
        # Looking ahead finds overlapping tokens too.
        self._whole = re.compile(f"(?={any_of(special_texts)}).", re.DOTALL)
        self._starts = tuple({text[:length] for text in special_texts for length in range(1, len(text))})
        self._ends = tuple({text[-length:] for text in special_texts for length in range(1, len(text))})
        self._markup = re.compile(f"({any_of([text for text in ASSISTANT_MARKUP if text in special_texts])})")

    def hide(self, value: object) -> object:
        """A copy with every special token's text broken, in dict keys too."""
        if isinstance(value, str):
            return self._hide_in_text(value)
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {self._hide_in_text(key): self.hide(item) for key, item in value.items()}
        return value

    def hide_in_message(self, message: dict[str, object]) -> dict[str, object]:
        """As `hide`, but the content of an assistant's message keeps its markup."""
        hidden = self.hide(message)
        if message.get("role") == "assistant" and "content" in message:
            hidden["content"] = self._hide_in_answer(message["content"])
        return hidden

    def _hide_in_answer(self, content: object) -> object:
        if isinstance(content, str):
            pieces = self._markup.split(content)
            return "".join(piece if i % 2 else self._hide_in_text(piece) for i, piece in enumerate(pieces))
        if isinstance(content, list):
            return [
                {**self.hide(item), "text": self._hide_in_answer(item["text"])}
                if isinstance(item, dict) and "text" in item
                else self.hide(item)
                for item in content
            ]
        return self.hide(content)

    def _hide_in_text(self, text: str) -> str:
        """Markers go inside the white space around the text, which templates like to strip."""
        text = self._whole.sub(rf"\g<0>{self._marker}", text)
        body = text.strip()
        if not body:
            return text
        before, _, after = text.partition(body)
        start = self._marker if body.startswith(self._ends) else ""
        end = self._marker if body.endswith(self._starts) else ""
        return f"{before}{start}{body}{end}{after}"


class _Renderer:
    """The process that renders, started when needed and after it had to be stopped."""

    def __init__(self, source: str, time_limit_s: float) -> None:
        self._setup = {"source": source, "max_chars": MAX_CHARS, "max_bytes": MAX_BYTES}
        self._time_limit_s = time_limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def render(self, context: dict[str, object]) -> dict[str, str]:
        """{"text": ...} or {"error": ...} from the worker. RequestError if it ended or took too long."""
        with self._lock:
            lines = json.dumps(context) + "\n"
            if self._process is None or self._process.poll() is not None:
                self._start()
                lines = json.dumps(self._setup) + "\n" + lines
            timer = threading.Timer(self._time_limit_s, self._process.kill)
            started = time.monotonic()
            timer.start()
            reply = ""
            try:
                reply = self._exchange(lines)
            finally:
                timer.cancel()
                timer.join()
                if not reply:  # after an interrupt too: the answer must not reach the next caller
                    self._stop()
        if reply:
            return json.loads(reply)
        if time.monotonic() - started >= self._time_limit_s:
            raise RequestError(f"chat template: stopped, rendering took longer than {self._time_limit_s:g} s")
        raise RequestError("chat template: the process that renders it ended before it answered")

    def _start(self) -> None:
        command = [sys.executable, "-c", START_WORKER, str(WORKER), *sys.path]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="ascii",
                start_new_session=True,  # Ctrl-C is for the program, not for this child
            )
        except OSError as error:
            raise RequestError(f"chat template: cannot start the process that renders it: {error}") from None
        self._process = process
        self._stop = weakref.finalize(self, _end_process, process)

    def _exchange(self, lines: str) -> str:
        """Send lines, wait for the answer, a line; "" if the process ended before it was complete."""
        try:
            self._process.stdin.write(lines)
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        reply = self._process.stdout.readline()
        return reply if reply.endswith("\n") else ""


def _end_process(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _check_messages(messages: object) -> None:
    if not _is_list_of_objects(messages):
        raise RequestError("messages: wanted a list of objects with role and content")


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value)


def _plain(value: object, depth: int = 0) -> object:
    """A copy made of dict, list, str, int, float, bool and None, the types of JSON. RequestError for anything else."""
    if depth > MAX_DEPTH:
        raise RequestError(f"messages: nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return checked_text(value)
    if isinstance(value, Mapping):
        return {checked_text(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise RequestError(f"messages: found {type(value).__name__}, wanted JSON values")


def _normalised(message: dict[str, object]) -> dict[str, object]:
    """Without None values, and with the reasoning under the names that templates read, as transformers does."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING_KEYS if key in message), None)
    if reasoning is None:
        return message
    return {**dict.fromkeys(THOUGHT_KEYS, reasoning), **message, "reasoning_content": reasoning}


def _ended(message: dict[str, object], end: str) -> dict[str, object]:
    """The message with a mark at the end of its text. Templates that strip the text do not strip before the mark."""
    content = message.get("content", "")
    thought = message.get(THOUGHT_KEYS[0])
    if isinstance(content, str) and content.lstrip().startswith(OPEN_THINKING) and CLOSE_THINKING not in content:
        # Thought that is not complete: templates know it by its field alone.
        thought, content = content.lstrip().removeprefix(OPEN_THINKING).lstrip("\n"), ""
    if not content and isinstance(thought, str):
        return {**message, "content": "", **dict.fromkeys(THOUGHT_KEYS, thought + end)}
    if isinstance(content, list) and content and isinstance(content[-1], dict) and "text" in content[-1]:
        return {**message, "content": [*content[:-1], {**content[-1], "text": f"{content[-1]['text']}{end}"}]}
    return {**message, "content": f"{content}{end}" if isinstance(content, str) else content}


def _unused_character(texts: Sequence[str]) -> str:
    """The first private-use character in none of `texts`."""
    used = set().union(*texts)
    for code in MARKERS:
        if chr(code) not in used:
            return chr(code)
    raise RequestError(f"messages: every private-use character from U+{MARKERS[0]:04X} to U+{MARKERS[-1]:04X} occurs")


def _token_variables(tokenizer: Tokenizer) -> dict[str, str]:
    """The names under which templates know special tokens -> their texts."""
    ids = {
        "bos_token": tokenizer.bos_token_id,
        "eos_token": tokenizer.eos_token_id,
        "pad_token": tokenizer.pad_token_id,
        "unk_token": tokenizer.unk_token_id,
    }
    return {name: tokenizer.token_text(token_id) for name, token_id in ids.items() if token_id is not None}
