"""RULER's tasks and the hidden link: what is asked for stands in the text as the task has it; a file as haystack."""

import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import vkprefill
from vkprefill.errors import RequestError
from vkprefill.evaluation import hidden_link, ruler
from vkprefill.evaluation.haystack import MOST_CHARACTERS, pool_of, read_haystack
from vkprefill.evaluation.ruler import RULER
from vkprefill.evaluation.task import ALL, ANY, Task
from vkprefill.evaluation.tasks import NAMED, make_tasks
from vkprefill.generation.prompt import encode_prompt
from vkprefill.gguf.file import open_gguf
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.tokenizer import Tokenizer

LENGTHS = (512, 1100)
LONG_PIECE = {"ruler:niah_multikey_3": 80}  # tokens of a needle of two uuids; all other pieces are shorter than
PIECE = 32


@pytest.fixture(scope="module")
def encode():
    """By the built-in model's tokenizer and template, without a device."""
    path = Path(vkprefill.__file__).parent / "data" / "target.gguf"
    metadata = open_gguf(path).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    template = ChatTemplate(metadata["tokenizer.chat_template"], tokenizer)
    model = SimpleNamespace(tokenizer=tokenizer, chat_template=template, path=path)
    return lambda prompt: encode_prompt(model, prompt)


@pytest.fixture(scope="module")
def made(encode) -> dict[tuple[str, int], Task]:
    """(kind, length) -> a task."""
    kinds = (hidden_link.KIND, *RULER)
    return {(t.kind, t.length): t for n in LENGTHS for t in make_tasks(encode, n, kinds, len(kinds), seed=5)}


def split(task: Task) -> tuple[str, str]:
    """(document, question)"""
    document, _, question = task.prompt.rpartition("\n")
    return document, question


def test_eleven_tasks_by_their_names():
    assert len(RULER) == 11 and {"ruler:niah_single_1", "ruler:vt", "ruler:cwe", "ruler:fwe"} < {*RULER} < {*NAMED}
    assert {*ruler.NOT_MADE} == {"ruler:qa_1", "ruler:qa_2"}


def test_lengths(made):
    for (kind, length), task in made.items():
        assert length - LONG_PIECE.get(kind, PIECE) < len(task.token_ids) <= length, task.id


def test_the_same_seed_makes_the_same_tasks(encode, made):
    kinds = (hidden_link.KIND, *RULER)
    assert make_tasks(encode, 512, kinds, len(kinds), seed=5) == [t for (_, n), t in made.items() if n == 512]
    others = make_tasks(encode, 512, kinds, len(kinds), seed=6)
    assert not {t.prompt for t in others} & {t.prompt for t in made.values()}


def test_needles(made):
    wanted = {name: (of.values * of.asked, of.keys) for name, of in ruler.NIAH.items()}
    for (kind, _), task in made.items():
        name = kind.removeprefix(ruler.PREFIX)
        if name not in wanted:
            continue
        document, question = split(task)
        told = re.findall(r"The secret (?:number|code) of (\S+) is (\S+)\.", document)
        num_answers, num_keys = wanted[name]
        asked = {key for key, _ in told if key in re.findall(r"[\w-]+", question)}
        assert len(task.answers) == num_answers and {v for key, v in told if key in asked} == {*task.answers}
        if "multikey_2" in name or "multikey_3" in name:
            assert len(told) > 4 and len({key for key, _ in told}) == len(told), "all of the text are needles"
        else:
            assert len({key for key, _ in told}) == num_keys
        assert len({value for _, value in told}) == len(told), "each value once"
        form = r"\d{7}" if "code" not in question else r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
        assert all(re.fullmatch(form, one) for one in task.answers)
        assert (ruler.NOISE[0] in document) == (name == "niah_single_1")


def test_variables(made):
    for (kind, _), task in made.items():
        if kind == "ruler:vt":
            document, question = split(task)
            told = re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?([A-Z]{5}|\d{5})\.", document)
            assert len(told) == len(task.answers) == 5
            value = told[0][1]
            assert value.isdigit() and value in question
            assert [before for _, before in told[1:]] == [name for name, _ in told[:-1]], "a chain, in order"
            assert [name for name, _ in told] == [*task.answers]


def test_common_words(made):
    for (kind, length), task in made.items():
        if kind == "ruler:cwe":
            listed = re.findall(r"(\d+)\. (\S+)", split(task)[0])
            assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
            counts = Counter(word for _, word in listed)
            times = {counts[word] for word in task.answers}
            assert len(task.answers) == 10 and len(times) == 1
            rest = [n for word, n in counts.items() if word not in task.answers]
            assert min(times) >= 2 * max(rest) and sum(rest) > length / 100, "and others between them"


def test_frequent_words(made):
    for (kind, _), task in made.items():
        if kind == "ruler:fwe":
            counts = Counter(split(task)[0].split())
            ranked = counts.most_common()
            assert ranked[0][0] == ruler.FILLER_WORD
            assert {word for word, _ in ranked[1:4]} == {*task.answers} and ranked[3][1] > ranked[4][1]
            for rank, (_, times) in enumerate(ranked[:6], 1):  # each rounded, and so is the first
                assert abs(times - ranked[0][1] / rank**2) <= 1, "zeta law of exponent 2"


def test_the_hidden_link_has_no_word_in_common(made):
    for landmark, city in hidden_link.LANDMARKS.items():
        for fact in hidden_link.FACTS:
            for question in hidden_link.QUESTIONS:
                told = {*re.findall(r"\w+", fact.format(name="X", landmark=landmark).lower())}
                assert not told & {*re.findall(r"\w+", question.format(city=city).lower())}, (fact, question)
    for (kind, _), task in made.items():
        if kind == hidden_link.KIND:
            document, question = split(task)
            (name,) = task.answers
            lines = [line for line in re.split(r"(?<=\.) ", document) if name in line]
            assert len(lines) == 1 and task.match == ANY
            (landmark,) = [one for one in hidden_link.LANDMARKS if one in lines[0]]
            assert hidden_link.LANDMARKS[landmark] in question


def test_scores():
    task = Task("x", "k", 1, "x", (1,), 0, ("AB", "1-2"), match=ALL)
    assert [task.score(a) for a in ("", "AB", "ab, 1-2.", "1-23 and xAB", "1-2")] == [0, 0.5, 1, 0, 0.5]
    assert task.is_right("1-2 and AB") and not task.is_right("AB")


def test_no_room(encode):
    for kind in ("ruler:niah_multiquery", "ruler:vt", "ruler:cwe", "ruler:fwe", hidden_link.KIND):
        with pytest.raises(RequestError, match=r"length: 30 tokens, the facts and the question"):
            make_tasks(encode, 30, (kind,), 1, seed=0)


# haystack


def test_haystack(tmp_path, encode):
    path = tmp_path / "text.txt"
    sentences = [f"Sentence {i} of a text says little." for i in range(40)]
    path.write_text("\n\n".join(" ".join(sentences[i : i + 5]) for i in range(0, 40, 5)) + "\n")
    haystack = read_haystack(path)
    assert list(haystack) == sentences
    pool = pool_of(random.Random(1), 100, haystack)
    start = sentences.index(pool[0])
    assert pool[:50] == [sentences[(start + i) % 40] for i in range(50)] and len(pool) > 100
    for task in make_tasks(
        encode, 400, ("single", "ruler:niah_single_2", hidden_link.KIND), 3, seed=1, haystack=haystack
    ):
        rest = split(task)[0]
        for sentence in sentences:
            rest = rest.replace(sentence, "")
        assert 10 < len(rest.strip()) < 120, "one fact is left"
        assert 400 - PIECE < len(task.token_ids) <= 400


def test_haystack_of_long_sentences(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("\ufeff" + "word " * 200 + "end. " + "x" * 600)
    pieces = read_haystack(path)
    assert max(map(len, pieces)) <= MOST_CHARACTERS and "".join(pieces).count("x") == 600
    assert " ".join(pieces[:5]) == "word " * 200 + "end."


def test_bad_haystack(tmp_path):
    for content, message in ((b"\xff\xfe", "is not UTF-8 text, at byte 0"), (b" \n", "holds no text")):
        path = tmp_path / "bad.txt"
        path.write_bytes(content)
        with pytest.raises(RequestError, match=message):
            read_haystack(path)
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        read_haystack(tmp_path / "no")
