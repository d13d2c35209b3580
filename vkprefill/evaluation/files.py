"""Tasks from a user's file: JSON lines with prompts and answers, or with the fields of LongBench."""

from __future__ import annotations

import json
from pathlib import Path

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.evaluation.task import ANY, Encoder, Task, first_difference

FILE_KIND = "file"
QUESTION_TOKENS = 64  # a prompt that does not say what its question is: this many last tokens


def read_tasks(path: str | Path, encode: Encoder) -> list[Task]:
    """A JSONL file's tasks: objects with `prompt` or `messages`, `answer` (a string or several), maybe `question`; or
    with LongBench's `context`, `input` and `answers`, of which the prompt is the first two, and `dataset` the kind.

    `question` is a part of the prompt or of its last message: what --force-question keeps; of LongBench's it is
    `input`. Empty lines are skipped. Raises RequestError, with the line's number.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from None
    tasks = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                tasks.append(_read_task(line, encode, str(number)))
            except (RequestError, ValueError) as error:
                raise RequestError(f"{path} line {number}: {error}") from None
    if not tasks:
        raise RequestError(f"{path}: holds no tasks")
    return tasks


def _read_task(line: bytes, encode: Encoder, name: str) -> Task:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(f"found {printable(fields)}, wanted an object")
    kind = FILE_KIND
    if "context" in fields:
        fields, kind = _of_longbench(fields)
    if ("prompt" in fields) == ("messages" in fields):
        raise RequestError('wanted either "prompt" or "messages"')
    prompt = fields.get("prompt", fields.get("messages"))
    if "prompt" in fields and not (isinstance(prompt, str) and prompt):
        raise RequestError(f'"prompt": found {printable(prompt)}, wanted text')
    if "messages" in fields and not (isinstance(prompt, list) and prompt and all(isinstance(m, dict) for m in prompt)):
        raise RequestError(f'"messages": found {printable(prompt)}, wanted a list of objects with role and content')
    answers = fields.get("answer")
    answers = [answers] if isinstance(answers, str) else answers
    if not (isinstance(answers, list) and answers and all(isinstance(a, str) and a for a in answers)):
        raise RequestError(f'"answer": found {printable(answers)}, wanted text or a list of texts')
    encoded = encode(prompt)
    ids = encoded.token_ids
    question_at = max(0, len(ids) - QUESTION_TOKENS)
    if "question" in fields:
        question_at = first_difference(ids, encode(_without(prompt, fields["question"])).token_ids)
    return Task(
        name,
        kind,
        None,
        prompt,
        tuple(ids),
        question_at,
        tuple(answers),
        match=ANY,
        protected=encoded.protected,
    )


def _without(prompt: str | list[dict[str, object]], question: object) -> str | list[dict[str, object]]:
    """The prompt with a shorter text where the question was."""
    text = prompt if isinstance(prompt, str) else prompt[-1].get("content")
    if not (isinstance(question, str) and question and isinstance(text, str) and question in text):
        raise RequestError(
            f'"question": found {printable(question)}, wanted a part of the prompt or of its last message'
        )
    before, after = text.rsplit(question, 1)
    rest = f"{before}?{after}"
    return rest if isinstance(prompt, str) else [*prompt[:-1], {**prompt[-1], "content": rest}]


def _of_longbench(fields: dict[str, object]) -> tuple[dict[str, object], str]:
    """(fields of our own, kind) of a line with LongBench's."""
    context, asked, kind = fields["context"], fields.get("input", ""), fields.get("dataset", FILE_KIND)
    for name, value in (("context", context), ("input", asked), ("dataset", kind)):
        if not isinstance(value, str) or (name != "input" and not value):
            raise RequestError(f'"{name}": found {printable(value)}, wanted text')
    if other := [name for name in ("prompt", "messages", "answer", "question") if name in fields]:
        raise RequestError(f'"{other[0]}": found beside "context", wanted "context", "input" and "answers" alone')
    if "answers" not in fields:
        raise RequestError('"answers": found none beside "context", wanted a list of texts')
    own: dict[str, object] = {"prompt": f"{context}\n\n{asked}" if asked else context, "answer": fields["answers"]}
    return (own | {"question": asked} if asked else own), kind
