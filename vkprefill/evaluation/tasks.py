"""Tasks made on the spot from a seed: facts hidden in a long text, and questions about them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from vkprefill.evaluation.haystack import LEAST_TOKENS, pool_of
from vkprefill.evaluation.hidden_link import KIND as HIDDEN_LINK
from vkprefill.evaluation.hidden_link import make_hidden_link
from vkprefill.evaluation.ruler import RULER, make_ruler
from vkprefill.evaluation.sentences import CODE_FACT, CODE_FILLERS, FACTS, NAMES, FactKind, filler
from vkprefill.evaluation.task import Encoder, Made, Task, fitted, mixed

KINDS = {
    "single": "one fact in a text without others",
    "several": "two facts, both asked for",
    "distractors": "one fact among facts of the same kind about other names",
    "code": "a constant in generated code (unknown to the built-in pair)",
}
NAMED = (*KINDS, HIDDEN_LINK, *RULER)
DISTRACTOR_TOKENS = 80  # one distractor for so many tokens of the prompt, at least LEAST_DISTRACTORS
LEAST_DISTRACTORS = 3
LINE_END_SHARE = 0.15  # of the sentences


def make_tasks(
    encode: Encoder,
    length: int,
    kinds: Sequence[str],
    count: int,
    seed: int,
    instruction: str = "",
    *,
    haystack: Sequence[str] | None = None,
) -> list[Task]:
    """`count` tasks of a length in tokens, of the kinds in turn (of NAMED), their facts spread evenly over the text.

    The same for the same arguments. A prompt has at most `length` tokens, and lacks less than one piece of filler: a
    sentence, a needle, a word of a list. instruction: follows the question; haystack: sentences in place of made ones,
    wherever a kind has such. Raises RequestError for a length without room for the facts and the question.
    """
    tasks = []
    for i in range(count):
        kind, rng = kinds[i % len(kinds)], random.Random(f"{seed}/{length}/{i}")
        turn, turns = i // len(kinds), -(-(count - i % len(kinds)) // len(kinds))  # among the tasks of this kind
        depth = (turn + 0.5) / turns
        if kind in RULER:
            made = make_ruler(kind, rng, length, depth, haystack, lambda text: len(encode(text).token_ids))
        elif kind == HIDDEN_LINK:
            made = make_hidden_link(rng, length, depth, haystack)
        else:
            made = _make_facts(kind, rng, length, depth, haystack)
        if instruction:
            made = replace(made, question=f"{made.question} {instruction}")
        tasks.append(fitted(encode, f"{kind}-{length}-{i}", kind, length, depth, made))
    return tasks


def _make_facts(kind: str, rng: random.Random, length: int, depth: float, haystack: Sequence[str] | None) -> Made:
    """One of KINDS."""
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
    if is_code:
        pool = [filler(rng, CODE_FILLERS) for _ in range(length // LEAST_TOKENS + 1)]
    else:
        pool = pool_of(rng, length, haystack)
    ends = ["\n" if is_code or rng.random() < LINE_END_SHARE else " " for _ in range(len(pool) + len(facts))]
    return Made(mixed(pool, facts, ends), len(pool), question, (" and ".join(values[:num_needles]),))
