"""Tasks: lengths in tokens, facts in their places and only there, the same for the same seed; files with mistakes."""

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import vkprefill
from vkprefill.errors import RequestError
from vkprefill.evaluation import sentences
from vkprefill.evaluation.files import QUESTION_TOKENS, read_tasks
from vkprefill.evaluation.task import ANY, Task
from vkprefill.evaluation.tasks import KINDS, make_tasks
from vkprefill.generation.prompt import encode_prompt
from vkprefill.gguf.file import open_gguf
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = (128, 300, 512, 1000)


@pytest.fixture(scope="module")
def model() -> SimpleNamespace:
    """The built-in model's tokenizer and template, without a device."""
    path = Path(vkprefill.__file__).parent / "data" / "target.gguf"
    metadata = open_gguf(path).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    return SimpleNamespace(
        tokenizer=tokenizer, chat_template=ChatTemplate(metadata["tokenizer.chat_template"], tokenizer), path=path
    )


@pytest.fixture(scope="module")
def encode(model):
    return lambda prompt: encode_prompt(model, prompt)


@pytest.fixture(scope="module")
def tasks(encode) -> list[Task]:
    """Eight of each length, of the kinds in turn."""
    return [task for length in LENGTHS for task in make_tasks(encode, length, tuple(KINDS), 8, seed=3)]


def facts_with(text: str, values: list[str]) -> list[str]:
    """Sentences or lines of a text that state one of these values as a fact does."""
    starts = [
        s.partition("{v}")[0].rpartition("{n}")[2]
        for kind in (*sentences.FACTS, sentences.CODE_FACT)
        for s in kind.facts
    ]
    pieces = text.replace("\n", ". ").split(". ")
    return [p for p in pieces for v in values if any(f"{s}{v}" in p and p.rstrip(".").endswith(v) for s in starts)]


def document(task: Task) -> str:
    return task.prompt.rpartition("\n")[0]


def test_lengths(tasks, encode, model):
    def longest_filler(templates: tuple[str, ...]) -> int:
        rng = random.Random(0)
        return max(len(model.tokenizer.encode(" " + sentences.filler(rng, templates))) for _ in range(1000))

    longest = {False: longest_filler(sentences.FILLERS), True: longest_filler(sentences.CODE_FILLERS)}
    for task in tasks:
        assert list(task.token_ids) == encode(task.prompt).token_ids
        assert task.length - longest[task.kind == "code"] - 1 <= len(task.token_ids) <= task.length, task.id


def test_question_is_at_the_end_and_its_tokens_are_known(tasks, model):
    for task in tasks:
        question = task.prompt.rpartition("\n")[2]
        tail = model.tokenizer.decode(task.token_ids[task.question_at :])
        assert question in tail and len(tail) < len(question) + 60, task.id


def test_needles_stand_in_the_text_once(tasks):
    for task in tasks:
        (answer,) = task.answers
        values = answer.split(" and ")
        assert len(values) == (2 if task.kind == "several" else 1)
        found = facts_with(document(task), values)
        assert len(found) == len(values), (task.id, found)
        name = (
            found[0].split(" = ")[0]
            if task.kind == "code"
            else next(n for n in sentences.NAMES if n in found[0].split())
        )
        assert name in task.prompt.rpartition("\n")[2]


def test_kinds(tasks):
    assert [t.kind for t in tasks[:5]] == [*KINDS, "single"]
    for task in tasks:
        if task.kind == "distractors":
            (answer,) = task.answers
            starts = {s.replace("{v}.", "") for kind in sentences.FACTS for s in kind.facts}
            lines = document(task).replace("\n", ". ").split(". ")
            same_kind = [line for line in lines if any(all(p in line for p in s.split("{n}")) for s in starts)]
            assert len(same_kind) >= max(3, task.length // 80) + 1, task.id
            assert sum(answer in line for line in same_kind) == 1, "the distractors have other values"
        assert ("def " in task.prompt) == (task.kind == "code")
        assert ("ACCESS_CODE_" in task.prompt) == (task.kind == "code")


def test_depths_are_spread(encode):
    made = make_tasks(encode, 1000, ("single",), 5, seed=0)
    assert [t.depth for t in made] == [0.1, 0.3, 0.5, 0.7, 0.9]
    for task in made:
        (fact,) = facts_with(document(task), list(task.answers))
        assert abs(task.prompt.index(fact) / len(task.prompt) - task.depth) < 0.05


def test_the_same_seed_makes_the_same_tasks(encode):
    made = make_tasks(encode, 200, tuple(KINDS), 4, seed=1)
    assert made == make_tasks(encode, 200, tuple(KINDS), 4, seed=1)
    assert not {t.prompt for t in made} & {t.prompt for t in make_tasks(encode, 200, tuple(KINDS), 4, seed=2)}


def test_instruction_follows_the_question(encode):
    (task,) = make_tasks(encode, 200, ("single",), 1, seed=1, instruction="Only the answer.")
    assert task.prompt.endswith(" Only the answer.")


def test_no_room(encode):
    with pytest.raises(
        RequestError, match=r"length: 20 tokens, the facts and the question of a task \(single\) alone take \d+"
    ):
        make_tasks(encode, 20, ("single",), 1, seed=0)


def test_right_answers():
    made = Task("x", "single", 1, "x", (1,), 0, ("red",))
    assert made.is_right(" red\n") and not made.is_right("red.") and not made.is_right("Red") and not made.is_right("")
    contains = Task("x", "file", None, "x", (1,), 0, ("red", "crimson"), match=ANY)
    assert contains.is_right("It is crimson.") and not contains.is_right("It is blue.")


def test_words_are_those_that_the_built_in_pair_was_trained_on(monkeypatch):
    path = ROOT / "tools" / "train_demo" / "grammar.py"
    spec = importlib.util.spec_from_file_location("demo_grammar", path)
    grammar = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo_grammar", grammar)  # its dataclass looks its module up
    spec.loader.exec_module(grammar)
    for name in ("NAMES", "CITIES", "COLOURS", "PETS", "MONTHS", "ADJECTIVES", "NOUNS", "PLACES", "VERBS", "ADVERBS"):
        assert getattr(sentences, name) == getattr(grammar, name)
    assert list(sentences.TIMES) == grammar.TIMES
    for ours, theirs in zip(sentences.FACTS, grammar.KINDS.values(), strict=True):
        assert ours.facts == tuple(f.replace("|", "") for f in theirs.facts)
        assert (ours.questions, ours.pair_question) == (theirs.questions, theirs.pair_question)


# files


def write(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_file(tmp_path, encode, model):
    long = "The old lamp stood near the hotel. " * 30
    path = write(
        tmp_path,
        {"prompt": long + "Which pet does Robert keep?", "answer": "pigeon"},
        "",
        {"prompt": f"Who? {long}", "question": "Who?", "answer": ["a", "b"], "note": "not looked at"},
        {"messages": [{"role": "user", "content": "Hi."}], "answer": "Hello"},
    )
    first, second, third = read_tasks(path, encode)
    assert (first.id, second.id, third.id) == ("1", "3", "4")
    assert first.answers == ("pigeon",) and second.answers == ("a", "b") and first.match == ANY
    assert first.question_at == len(first.token_ids) - QUESTION_TOKENS
    assert "Who?" in model.tokenizer.decode(second.token_ids[second.question_at :]) and second.question_at < 6
    assert list(third.token_ids) == encode([{"role": "user", "content": "Hi."}]).token_ids and third.question_at == 0


def test_file_with_the_fields_of_longbench(tmp_path, encode):
    long = "The old lamp stood near the hotel. " * 30
    line = {"input": "Which pet does Robert keep?", "context": long, "answers": ["pigeon", "a bird"], "length": 9}
    path = write(tmp_path, {**line, "dataset": "hotpotqa"}, {**line, "input": ""})
    asked, whole = read_tasks(path, encode)
    assert (asked.kind, whole.kind, asked.answers, asked.match) == ("hotpotqa", "file", ("pigeon", "a bird"), ANY)
    assert asked.prompt == f"{long}\n\nWhich pet does Robert keep?" and whole.prompt == long
    assert 0 < len(asked.token_ids) - asked.question_at < 15


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"text"', "wanted an object"),
        ({"answer": "a"}, 'either "prompt" or "messages"'),
        ({"prompt": "p", "messages": [], "answer": "a"}, 'either "prompt" or "messages"'),
        ({"prompt": "", "answer": "a"}, '"prompt": found'),
        ({"prompt": 3, "answer": "a"}, '"prompt": found 3'),
        ({"messages": ["x"], "answer": "a"}, '"messages": found'),
        ({"messages": [], "answer": "a"}, '"messages": found'),
        ({"prompt": "p"}, '"answer": found None'),
        ({"prompt": "p", "answer": []}, '"answer": found'),
        ({"prompt": "p", "answer": ["a", 1]}, '"answer": found'),
        ({"prompt": "p", "answer": "a", "question": "q"}, '"question": found'),
        ({"context": "c", "input": "i"}, '"answers": found none'),
        ({"context": "c", "input": 3, "answers": ["a"]}, '"input": found 3'),
        ({"context": "", "input": "i", "answers": ["a"]}, '"context": found'),
        ({"context": "c", "answers": []}, '"answer": found'),
        ({"context": "c", "answers": ["a"], "prompt": "p"}, '"prompt": found beside "context"'),
        ({"context": "c", "answers": ["a"], "dataset": 1}, '"dataset": found 1'),
    ],
)
def test_file_with_a_bad_line(tmp_path, encode, line, message):
    path = write(tmp_path, {"prompt": "p", "answer": "a"}, line)
    with pytest.raises(RequestError, match=f"tasks.jsonl line 2: .*{message}"):
        read_tasks(path, encode)


def test_file_that_is_not_there_empty_or_not_utf8(tmp_path, encode):
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        read_tasks(tmp_path / "no", encode)
    with pytest.raises(RequestError, match="holds no tasks"):
        read_tasks(write(tmp_path, ""), encode)
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "\xe4", "answer": "a"}')
    with pytest.raises(RequestError, match="line 1: not JSON"):
        read_tasks(path, encode)
