"""Where a user asks, found in the bytes of the tokens of the built-in pair's vocabulary and of one of single bytes."""

from pathlib import Path

import pytest

import vkprefill
from vkprefill.gguf.file import open_gguf
from vkprefill.specprefill.questions import MOST, OF_LINE, SHORT, Requests, requests_in
from vkprefill.text.tokenizer import Tokenizer

FILES = [
    Path(vkprefill.__file__).parent / "data" / "target.gguf",
    Path(__file__).parents[1] / "data" / "models" / "tiny-c-q4km.gguf",
]
FILLER = "The old man crossed the river slowly. "
QUESTION = "Which access code does Roland use?"
CODE = "".join(f"def handler_{i}(request):\n    value = {i}\n    return value\n\n" for i in range(40))


@pytest.fixture(scope="module", params=FILES, ids=["words", "few merges"])
def tokenizer(request) -> Tokenizer:
    return Tokenizer.from_metadata(open_gguf(request.param).metadata)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    """The built-in pair's, of 1,536 tokens."""
    return Tokenizer.from_metadata(open_gguf(FILES[0]).metadata)


def asked(tokenizer: Tokenizer, text: str, part: str = "all") -> list[str]:
    """The protected texts, after a look at what holds of all."""
    ids = tokenizer.encode(text)
    raw = [tokenizer.token_bytes(token_id) for token_id in ids]
    found = requests_in(raw)
    tokens = {t for start, end in found.all for t in range(start, end)}
    assert len(tokens) <= max(MOST, SHORT)
    for ranges in (found.all, found.ending, found.heart):
        assert {t for pair in ranges for t in range(*pair)} <= tokens
        ends = [place for pair in ranges for place in pair]
        assert ends == sorted(set(ends)) and all(0 <= place <= len(ids) for place in ends)
    ranges = getattr(found, part)
    return [b"".join(raw[start:end]).decode(errors="replace").rstrip("\n") for start, end in ranges]


@pytest.mark.parametrize("text", ["Hi", QUESTION, "one line\nand another"])
def test_short_messages_whole(tokenizer, text):
    assert asked(tokenizer, text) == [text]


def test_the_last_short_length(words):
    letters = ["a", " b"] * 200
    assert requests_in([one.encode() for one in letters[:SHORT]]).all == ((0, SHORT),)
    found = requests_in([one.encode() for one in letters[: SHORT + 1]])
    assert found.all == found.heart == ((0, OF_LINE), (SHORT + 1 - OF_LINE, SHORT + 1))
    assert requests_in([]) == requests_in([b"\n"] * 300) == Requests()


def test_a_line_of_its_own_at_the_end(words):
    assert asked(words, CODE + "Quote the function handler_13 exactly.") == [
        "def handler_0(request):",
        "Quote the function handler_13 exactly.",
    ]


def test_a_line_of_its_own_at_the_beginning(words):
    found = asked(words, "Find the constant, then say it.\n" + CODE)
    assert found == ["Find the constant, then say it.", "    return value"]
    assert asked(words, f"{QUESTION}\n\n{FILLER * 60}")[0] == QUESTION


def test_the_end_of_a_long_line_from_the_beginning_of_a_sentence(words):
    first, last = asked(words, FILLER * 60 + QUESTION)
    assert last.endswith(QUESTION) and last.startswith(" The old man")
    assert first.startswith("The old man") and first.endswith("slowly.")


def test_the_end_is_worth_more_than_the_beginning(words):
    """Where little is kept: of the first line a sentence, of the last one all that is protected."""
    long = FILLER * 60
    everything = asked(words, long + QUESTION)
    assert asked(words, long + QUESTION, "ending") == [FILLER.strip(), everything[1]]
    assert asked(words, f"{QUESTION}\n{long}", "ending")[0] == QUESTION
    found = requests_in([words.token_bytes(n) for n in words.encode(long + QUESTION)])
    sizes = [sum(end - start for start, end in spans) for spans in (found.all, found.ending, found.heart)]
    assert OF_LINE < sizes[1] < sizes[0] and sizes[2] < 32
    for most, chosen in ((sizes[0], found.all), (sizes[0] - 1, found.ending), (sizes[1] - 1, found.heart)):
        assert found.within(most) == chosen
    assert found.within(0) == found.heart


def test_the_heart_is_a_sentence_of_a_long_line(words):
    assert asked(words, FILLER * 60 + QUESTION, "heart") == [FILLER.strip(), f" {QUESTION}"]
    assert asked(words, f"{FILLER * 6}\n{FILLER * 60}\n{QUESTION}", "heart") == [FILLER.strip(), QUESTION]
    short = "Find the code. Say it."
    for part in ("all", "ending", "heart"):
        assert asked(words, f"{short}\n{FILLER * 60}\n{QUESTION}", part) == [short, QUESTION]
        assert asked(words, f"{FILLER * 60}\n\n{QUESTION}\n\n{FILLER * 60}", part)[1] == QUESTION
    assert "Hi" in asked(words, "Hi", "heart")


def test_a_paragraph_of_several_lines(words):
    question = "Roland has a code.\nIt has four digits.\nWhat is it?"
    assert asked(words, f"{CODE}\n\n{question}")[-1] == question
    assert asked(words, f"{question}\n\n{CODE}")[0] == question


def test_a_question_before_the_last_paragraph(words):
    found = asked(words, f"{FILLER * 60}\n\n{QUESTION}\n\nAnswer in one word.")
    assert found[-2:] == [QUESTION, "Answer in one word."]


@pytest.mark.parametrize("between", ["\n\n", "\n", " "])
def test_a_question_in_the_middle(words, between):
    assert QUESTION in [text.strip() for text in asked(words, FILLER * 60 + between + QUESTION + between + FILLER * 60)]


def test_a_text_full_of_questions_is_no_question(words):
    rows = "\n".join(f"Who sold the boat of {name}? Nobody did." for name in ("Anna", "Peter", "Vera") * 40)
    assert asked(words, rows) == ["Who sold the boat of Anna? Nobody did.", "Who sold the boat of Vera? Nobody did."]


@pytest.mark.parametrize(
    "filler, question",
    [
        ("这是一个很长的句子，没有空格。", "罗兰的代码是什么？"),
        ("これは長い文です。", "コードは何ですか？"),
        ("هذه جملة طويلة. ", "ما هو الرمز؟"),
        ("Party 👨‍👩‍👧 again. ", "Who 🎉 came?"),
    ],
)
def test_other_scripts(tokenizer, filler, question):
    for text in (filler * 60 + question, f"{filler * 60}\n{question}", f"{question}\n{filler * 60}"):
        found = asked(tokenizer, text)
        assert any(question in one for one in found), found
        assert not any("\ufffd" in one for one in found), "no half character"


def test_a_line_without_sentences_is_cut_between_characters(tokenizer):
    for text in ("字" * 400, "👍" * 400, "x" * 3000):
        first, last = asked(tokenizer, text)
        assert set(first) == set(last) == {text[0]}


def test_carriage_returns(words):
    text = CODE.replace("\n", "\r\n") + "\r\n\r\n" + QUESTION + "\r\n"
    assert asked(words, text) == ["def handler_0(request):", QUESTION]
