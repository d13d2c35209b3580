"""The tasks of RULER that need no data set: Hsieh et al. 2024, "RULER: What's the Real Context Size of Your
Long-Context Language Models?", arXiv 2404.06654, section 3 and appendix B.

What is as there: what is hidden, how much of it, in which kind of text, and that an answer must name all that is
expected. What differs: all wording and word lists; filler sentences or a file of the user's in place of essays; no
worked example before a question (vt, cwe) and no beginning of the answer after it; an expected text must stand as a
word of its own; fewer repetitions where a prompt is too short for 30 and 3 (cwe). So scores are not to be compared with
published ones. qa_1 and qa_2 need data sets.
"""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vkprefill.evaluation.haystack import pool_of
from vkprefill.evaluation.sentences import ADJECTIVES, NOUNS
from vkprefill.evaluation.task import ALL, Made, mixed

PREFIX = "ruler:"
NOISE = ("The hill is steep.", "The lake is deep.", "The rain is cold.", "On we walk.", "Home and out once more.")
NEEDLE = "The secret {what} of {key} is {value}."
ONE_NEEDLE = "What is the secret {what} of {keys}?"
SEVERAL_NEEDLES = "What are all the secret {what}s of {keys}?"
NUMBER, WORD, UUID = "number", "word", "uuid"
TEXT, REPEATED, NEEDLES = "text", "repeated", "needles"  # what surrounds the needles
LEAST_NEEDLE_TOKENS = 8
HOPS, VARIABLE_LETTERS = 4, 5
NUM_COMMON, MOST_COMMON, FEWEST_COMMON, COMMON_SHARE = 10, 30, 2, 0.4  # cwe: words, times each, share of the prompt
RARE_PART = 10  # cwe: a rare word stands a tenth as often as a common one, at least once
SAMPLE_WORDS = 40
LEAST_LISTED_TOKENS = 4  # cwe: a number, a point, a word
FREQUENT, FWE_LETTERS, ZETA_2, LEAST_CODED = 3, 6, 1.6449340668, 38  # fwe: zeta law of exponent 2
FILLER_WORD = "..."  # fwe: the most frequent, and not asked for


@dataclass(frozen=True)
class Needles:
    """A niah task: needles about so many keys, with so many values each, of which `asked` keys are asked for."""

    hay: str = TEXT
    key: str = WORD
    value: str = NUMBER
    keys: int = 1
    values: int = 1
    asked: int = 1


NIAH = {
    "niah_single_1": Needles(hay=REPEATED),
    "niah_single_2": Needles(),
    "niah_single_3": Needles(value=UUID),
    "niah_multikey_1": Needles(keys=4),
    "niah_multikey_2": Needles(hay=NEEDLES),
    "niah_multikey_3": Needles(hay=NEEDLES, key=UUID, value=UUID),
    "niah_multivalue": Needles(values=4),
    "niah_multiquery": Needles(keys=4, asked=4),
}
RULER = tuple(f"{PREFIX}{name}" for name in (*NIAH, "vt", "cwe", "fwe"))
NOT_MADE = {f"{PREFIX}{name}": "needs a data set of questions, give one by -f" for name in ("qa_1", "qa_2")}

Count = Callable[[str], int]
"""Tokens of a text."""


def make_ruler(
    kind: str, rng: random.Random, length: int, depth: float, haystack: Sequence[str] | None, count: Count
) -> Made:
    """One of RULER."""
    name = kind.removeprefix(PREFIX)
    if name in NIAH:
        return _needles(NIAH[name], rng, length, depth, haystack)
    if name == "vt":
        return _variables(rng, length)
    return _common(rng, length, count) if name == "cwe" else _frequent(rng, length)


def _needles(of: Needles, rng: random.Random, length: int, depth: float, haystack: Sequence[str] | None) -> Made:
    others = length // LEAST_NEEDLE_TOKENS if of.hay == NEEDLES else 0
    keys = _distinct(rng, of.key, of.keys + others)
    values = _distinct(rng, of.value, of.keys * of.values + others)
    what = "number" if of.value == NUMBER else "code"
    told = [(keys[i // of.values], values[i]) for i in range(of.keys * of.values)]
    facts = [
        (depth if i == 0 else rng.random(), NEEDLE.format(what=what, key=key, value=value))
        for i, (key, value) in enumerate(told)
    ]
    if of.hay == NEEDLES:
        rest = zip(keys[of.keys :], values[len(told) :], strict=True)
        pool = [NEEDLE.format(what=what, key=key, value=value) for key, value in rest]
    else:
        pool = _noise(length) if of.hay == REPEATED else pool_of(rng, length, haystack)
    answers = tuple(value for key, value in told if key in keys[: of.asked])
    wording = ONE_NEEDLE if len(answers) == 1 else SEVERAL_NEEDLES
    question = wording.format(what=what, keys=_listed(keys[: of.asked]))
    return Made(mixed(pool, facts), len(pool), question, answers, ALL)


def _variables(rng: random.Random, length: int) -> Made:
    """A value that goes from variable to variable."""
    names = _letters(rng, string.ascii_uppercase, VARIABLE_LETTERS, HOPS + 1)
    value = str(rng.randrange(10_000, 100_000))
    lines = [f"VAR {names[0]} = {value}."]
    lines += [f"VAR {name} = VAR {before}." for before, name in zip(names, names[1:], strict=False)]
    facts = list(zip(sorted(rng.random() for _ in lines), lines, strict=True))
    question = f"Name all {HOPS + 1} variables that hold the value {value}, given directly or through others."
    pool = _noise(length)
    return Made(mixed(pool, facts), len(pool), question, tuple(names), ALL)


def _common(rng: random.Random, length: int, count: Count) -> Made:
    """A list of words of which ten stand more often than the others."""
    sample = count(_numbered(_distinct(rng, WORD, SAMPLE_WORDS))) / SAMPLE_WORDS
    times = int(COMMON_SHARE * length / (sample * NUM_COMMON))
    times = min(MOST_COMMON, max(FEWEST_COMMON, times))
    rare_times = max(1, times // RARE_PART)
    words = _distinct(rng, WORD, NUM_COMMON + length // (LEAST_LISTED_TOKENS * rare_times) + 1)
    common = words[:NUM_COMMON]
    rare = [word for word in words[NUM_COMMON:] for _ in range(rare_times)]
    order = [rng.random() for _ in range(NUM_COMMON * times + len(rare))]

    def text(num_rare: int) -> str:
        given = common * times + rare[:num_rare]
        return _numbered([word for _, word in sorted(zip(order, given, strict=False))])

    question = f"Which are the {NUM_COMMON} words that stand most often in this list?"
    return Made(text, len(rare), question, tuple(common), ALL)


def _frequent(rng: random.Random, length: int) -> Made:
    """Made-up words, that of rank k so often as the zeta law says: n / (k^2 zeta(2)) of n."""
    most = max(length, LEAST_CODED)
    ranks = 1 + next(k for k in range(1, most + 2) if _times(k, most) == 0)
    words = [FILLER_WORD, *_letters(rng, string.ascii_lowercase, FWE_LETTERS, ranks)]
    order = [rng.random() for _ in range(2 * most)]

    def text(num_words: int) -> str:
        given = [word for k, word in enumerate(words, 1) for _ in range(_times(k, num_words))]
        return " ".join(word for _, word in sorted(zip(order, given, strict=False)))

    question = f"Leave out the dots. Which are the {FREQUENT} made-up words that stand most often in this text?"
    return Made(text, most, question, tuple(words[1 : FREQUENT + 1]), ALL, least=LEAST_CODED)


def _times(rank: int, num_words: int) -> int:
    return round(num_words / (rank**2 * ZETA_2))


def _noise(length: int) -> list[str]:
    """More of it than so many tokens hold."""
    return [NOISE[i % len(NOISE)] for i in range(length // 2)]


def _numbered(words: Sequence[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _distinct(rng: random.Random, what: str, count: int) -> list[str]:
    """Different numbers of seven digits, uuids, or words: an adjective with a noun, where more are wanted with two."""
    if what == NUMBER:
        return [str(one) for one in rng.sample(range(1_000_000, 10_000_000), count)]
    if what == UUID:
        return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]
    pairs, n = len(ADJECTIVES) * len(NOUNS), len(NOUNS)
    picked = rng.sample(range(pairs if count <= pairs else pairs * n), count)
    words = [f"{ADJECTIVES[i % pairs // n]}-{NOUNS[i % pairs % n]}" for i in picked]
    return words if count <= pairs else [f"{word}-{NOUNS[i // pairs]}" for word, i in zip(words, picked, strict=True)]


def _letters(rng: random.Random, alphabet: str, length: int, count: int) -> list[str]:
    """Different words of random letters."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(alphabet, k=length))] = None
    return list(found)
