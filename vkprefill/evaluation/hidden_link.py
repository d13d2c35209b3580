"""A fact and a question that have no word in common: what links them, a landmark and its city, has to be known.

The idea is that of Modarressi et al. 2025, "NoLiMa: Long-Context Evaluation Beyond Literal Matching", arXiv 2502.05167;
sentences, landmarks and questions are our own. A test of what scores tokens by attention: nothing matches literally.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from vkprefill.evaluation.haystack import pool_of
from vkprefill.evaluation.sentences import NAMES
from vkprefill.evaluation.task import ANY, Made, mixed

KIND = "nolima_like"
LANDMARKS = {
    "the Eiffel Tower": "Paris",
    "the Colosseum": "Rome",
    "the Acropolis": "Athens",
    "the Brandenburg Gate": "Berlin",
    "the Kremlin": "Moscow",
    "the Hagia Sophia": "Istanbul",
    "the Sagrada Familia": "Barcelona",
    "Buckingham Palace": "London",
    "the Little Mermaid statue": "Copenhagen",
    "the Empire State Building": "New York",
    "the Golden Gate Bridge": "San Francisco",
    "the Opera House with the white sails": "Sydney",
    "the Sugarloaf cable car": "Rio de Janeiro",
    "the Great Sphinx": "Giza",
}
FACTS = (
    "Every morning {name} cycles past {landmark}.",
    "From the bedroom window {name} sees {landmark}.",
    "{name} sells postcards beside {landmark}.",
)
QUESTIONS = ("Which person surely knows {city} well?", "Who most likely pays taxes in {city}?")


def make_hidden_link(rng: random.Random, length: int, depth: float, haystack: Sequence[str] | None) -> Made:
    """One fact among sentences that name other people."""
    name, landmark = rng.choice(NAMES), rng.choice(list(LANDMARKS))
    fact = rng.choice(FACTS).format(name=name, landmark=landmark)
    question = rng.choice(QUESTIONS).format(city=LANDMARKS[landmark])
    pool = [one for one in pool_of(rng, length, haystack) if haystack or name not in one]
    return Made(mixed(pool, [(depth, fact)]), len(pool), question, (name,), ANY)
