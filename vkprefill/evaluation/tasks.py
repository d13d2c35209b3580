"""Tasks with known answers: needles in a text made on the spot, or a user's own prompts from a JSONL file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.evaluation.sentences import CODE_FACT, CODE_FILLERS, FACTS, FILLERS, NAMES, FactKind, filler
from vkprefill.generation.prompt import EncodedPrompt
from vkprefill.specprefill.protection import Protected

Encoder = Callable[[str | Sequence[Mapping[str, object]]], EncodedPrompt]
"""Text of a user's message, or messages -> the prompt."""

KINDS = {
    "single": "one fact in a text without others",
    "several": "two facts, both asked for",
    "distractors": "one fact among facts of the same kind about other names",
    "code": "a constant in generated code (unknown to the built-in pair)",
}
FILE_KIND = "file"
DISTRACTOR_TOKENS = 80  # one distractor for so many tokens of the prompt, at least LEAST_DISTRACTORS
LEAST_DISTRACTORS = 3
LINE_END_SHARE = 0.15  # of the sentences
LEAST_FILLER_TOKENS = 4  # a filler sentence has more
QUESTION_TOKENS = 64  # a file's prompt that does not say what its question is: this many last tokens


@dataclass(frozen=True)
class Task:
    """A prompt with the answers that are right.

    length: tokens asked for (a file's tasks: None); question_at: first token of the question; depth: where in the text
    the fact stands, from 0 to 1; contains: an answer that contains a right one is right, else it must be equal after
    strip.
    """

    id: str
    kind: str
    length: int | None
    prompt: str | Sequence[Mapping[str, object]]
    token_ids: tuple[int, ...]
    question_at: int
    answers: tuple[str, ...]
    depth: float | None = None
    contains: bool = False
    protected: Protected | None = None  # None: what the tokens alone tell

    def is_right(self, answer: str) -> bool:
        return any(one in answer if self.contains else one == answer.strip() for one in self.answers)


def make_tasks(
    encode: Encoder, length: int, kinds: Sequence[str], count: int, seed: int, instruction: str = ""
) -> list[Task]:
    """`count` tasks of a length in tokens, of the kinds in turn, their facts spread evenly over the text.

    The same for the same arguments. A prompt has at most `length` tokens, and lacks less than one filler sentence.
    instruction: follows the question. Raises RequestError for a length without room for the facts and the question.
    """
    tasks = []
    for i in range(count):
        kind, rng = kinds[i % len(kinds)], random.Random(f"{seed}/{length}/{i}")
        turn, turns = i // len(kinds), -(-(count - i % len(kinds)) // len(kinds))  # among the tasks of this kind
        tasks.append(_make_task(encode, length, kind, (turn + 0.5) / turns, rng, f"{kind}-{length}-{i}", instruction))
    return tasks


def _make_task(
    encode: Encoder, length: int, kind: str, depth: float, rng: random.Random, name: str, instruction: str
) -> Task:
    is_code = kind == "code"
    fact: FactKind = CODE_FACT if is_code else rng.choice(FACTS)
    num_needles = 2 if kind == "several" else 1
    num_others = max(LEAST_DISTRACTORS, length // DISTRACTOR_TOKENS) if kind == "distractors" else 0
    names = rng.sample(NAMES, min(len(NAMES), num_needles + num_others))
    if is_code:
        names = [n.upper() for n in names]
    values = [fact.value(rng) for _ in range(num_needles)]
    while len(values) < len(names):
        if (value := fact.value(rng)) not in values[:num_needles]:
            values.append(value)
    depths = [depth, *(rng.random() for _ in names[1:])]
    facts = [(d, rng.choice(fact.facts).format(n=n, v=v)) for d, n, v in zip(depths, names, values, strict=True)]
    question = (fact.pair_question if num_needles == 2 else rng.choice(fact.questions)).format(n=names[0], m=names[-1])
    question += f" {instruction}" if instruction else ""
    pool = [filler(rng, CODE_FILLERS if is_code else FILLERS) for _ in range(length // LEAST_FILLER_TOKENS + 1)]
    ends = ["\n" if is_code or rng.random() < LINE_END_SHARE else " " for _ in range(len(pool) + len(facts))]

    def text(num_fillers: int) -> str:
        pieces = pool[:num_fillers]
        for where, sentence in sorted(facts, reverse=True):
            pieces.insert(round(where * num_fillers), sentence)
        return "".join(piece + end for piece, end in zip(pieces, ends, strict=False)).rstrip()

    least = len(encode(f"{text(0)}\n{question}").token_ids)
    if least > length:
        raise RequestError(f"length: {length} tokens, the facts and the question of a task ({kind}) alone take {least}")
    low, high = 0, len(pool)  # fillers: so many fit, so many do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(encode(f"{text(middle)}\n{question}").token_ids) <= length else (low, middle)
    prompt = f"{text(low)}\n{question}"
    encoded = encode(prompt)
    return Task(
        name,
        kind,
        length,
        prompt,
        tuple(encoded.token_ids),
        _first_difference(encoded.token_ids, encode(text(low)).token_ids),
        (" and ".join(values[:num_needles]),),
        depth,
        protected=encoded.protected,
    )


def read_tasks(path: str | Path, encode: Encoder) -> list[Task]:
    """A JSONL file's tasks: objects with `prompt` or `messages`, `answer` (a string or several), maybe `question`.

    `question` is a part of the prompt or of its last message: what is kept in any case. Empty lines are skipped. Raises
    RequestError, with the line's number.
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
        question_at = _first_difference(ids, encode(_without(prompt, fields["question"])).token_ids)
    return Task(
        name,
        FILE_KIND,
        None,
        prompt,
        tuple(ids),
        question_at,
        tuple(answers),
        contains=True,
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


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
