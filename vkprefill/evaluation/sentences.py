"""What the tasks' texts are made of: filler sentences, facts about people, questions about them, and lines of code.

The words and wordings are those of tools/train_demo/grammar.py: plain English for any chat model, and all that the
built-in pair knows. Only the code is foreign to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NAMES = """
    Marta Ivan Elena Peter Anna Tomas Clara Hugo Nadia Felix Irene Oscar Lucia Bruno Vera Simon Greta Pablo Laura
    Martin Alice David Sofia Henry Julia Frank Emma Robert Maria Victor Helen George Nora Arthur Diana Edgar Flora
    Gilbert Hanna Ingrid Jasper Karin Leon Mila Niels Olga Paul Quentin Rosa Stefan Tessa Ulrich Viola Walter Xenia
    Yara Zoe Adam Bella Carl Dora Eric Fiona Gustav Heidi Isaac Joan Kevin Linda Marco Nina Otto Paula Ralph Sara
    Theo Ursula Vincent Wendy Yves Zelda Aaron Beth Colin Daria Ethan Freda Gavin Holly Igor Jenny Kurt Lydia Mario
    Nancy Oliver Petra Rita Samuel Tina Urban Wanda Amir Berta Cyril Doris Emil Fatima Gloria Harold Ida Jonas Kira
    Lukas Monica Nils Olivia Philip Ruth Sven Tanya Viktor Willa Agnes Boris Celia Dennis Edith Floyd Grace Hector
    Iris Jacob Kate Louis Megan Norman Pearl Roland Sonia Travis Una Vivian Wilma Alan Brenda Carmen Derek Erika
    Fergus Gina Howard Isabel Julian
""".split()
CITIES = """
    Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Oslo Athens Warsaw Helsinki Geneva Zurich Milan
    Naples Venice Turin Munich Hamburg Cologne Lyon Bordeaux Porto Seville Valencia Krakow Riga Tallinn Vilnius
    Sofia Belgrade Zagreb Tokyo Kyoto Cairo Lima Quito Boston Chicago Denver Dallas Toronto Ottawa Sydney
""".split()
COLOURS = """
    red blue green yellow purple orange black white brown pink grey silver golden violet turquoise crimson
""".split()
PETS = "cat dog horse rabbit parrot turtle hamster goat snake lizard donkey ferret pigeon sheep duck goose".split()
MONTHS = "January February March April May June July August September October November December".split()
ADJECTIVES = """
    old small quiet bright narrow heavy simple early late warm cold empty busy new wooden open long plain gentle
    local
""".split()
NOUNS = """
    market bridge garden station library river window kitchen letter road village teacher doctor farmer engineer
    clerk driver painter report meeting budget machine engine valley forest harbour tower school office hotel museum
    bakery train boat bicycle lamp table door picture story song winter summer morning evening
""".split()
PLACES = """
    market bridge garden station library river village valley forest harbour tower school office hotel museum bakery
""".split()
VERBS = """
    crossed watched repaired painted opened closed visited described left found cleaned moved sold bought ignored
    praised
""".split()
ADVERBS = "slowly quickly again often quietly finally carefully later together alone".split()
TIMES = (
    "In the morning",
    "After lunch",
    "Last week",
    "Before dawn",
    "In the evening",
    "On Monday",
    "On Friday",
    "At noon",
    "In spring",
    "During the winter",
    "That night",
    "Some days later",
)

FILLERS = (
    "The {adj} {noun} stood near the {place}.",
    "{time} the {noun} was {adj} and the {noun2} was {adj2}.",
    "Nobody knew why the {noun} {verb} the {adj} {noun2}.",
    "{time} they {verb} the {noun} {adv}.",
    "It was a {adj} day, and the road to the {place} was {adj2}.",
    "The {noun} and the {noun2} were kept behind the {place}.",
    "Some people said that the {place} was too {adj} for a {noun}.",
    "We walked {adv} from the {place} to the {place2}.",
    "There were {small} chairs in the {adj} {place}.",
    "{time} {name} {verb} the {adj} {noun}.",
    "{name} and {name2} talked {adv} about the {noun}.",
    "The {noun} cost {large} coins, which seemed {adj}.",
    "If the {noun} is {adj}, the {noun2} will be {adj2}.",
    "A {adj} wind came from the {place} and moved the {noun}.",
    "{time} a train left for {city}.",
    "The {noun} of the {place} was {adj}, {adj2} and rather {adj3}.",
)
CODE_FILLERS = (
    "def {verb}_{noun}({noun2}):\n    return {noun2} + {small}\n",
    "def {verb}_{noun}({noun2}, {place}):\n"
    "    if {noun2} > {large}:\n        return {place}\n    return {noun2} * {small}\n",
    "{noun}_{place} = [{small}, {large}, {small2}]\n",
    "class {adj}_{noun}:\n    {place} = {large}\n",
)


@dataclass(frozen=True)
class FactKind:
    """A kind of fact. {n}, {m} are names, {v} the value."""

    value: Callable[[random.Random], str]
    facts: tuple[str, ...]
    questions: tuple[str, ...]
    pair_question: str


def _digits(count: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.randrange(10 ** (count - 1), 10**count))


FACTS = (
    FactKind(
        _digits(4),
        ("The access code of {n} is {v}.", "{n} uses the access code {v}."),
        ("What is the access code of {n}?", "Tell me the access code of {n}."),
        "What are the access codes of {n} and {m}?",
    ),
    FactKind(
        _digits(3),
        ("The room number of {n} is {v}.", "{n} works in room number {v}."),
        ("What is the room number of {n}?", "Tell me the room number of {n}."),
        "What are the room numbers of {n} and {m}?",
    ),
    FactKind(
        lambda rng: rng.choice(CITIES),
        ("{n} lives in the city of {v}.", "The home city of {n} is {v}."),
        ("What is the home city of {n}?", "In which city does {n} live?"),
        "What are the home cities of {n} and {m}?",
    ),
    FactKind(
        lambda rng: rng.choice(COLOURS),
        ("The favourite colour of {n} is {v}.", "{n} likes the colour {v}."),
        ("What is the favourite colour of {n}?", "Which colour does {n} like?"),
        "What are the favourite colours of {n} and {m}?",
    ),
    FactKind(
        lambda rng: rng.choice(PETS),
        ("{n} keeps a pet {v}.", "The pet of {n} is a {v}."),
        ("Which pet does {n} keep?", "What is the pet of {n}?"),
        "What are the pets of {n} and {m}?",
    ),
    FactKind(
        lambda rng: f"{rng.randrange(1, 29)} {rng.choice(MONTHS)}",
        ("{n} was born on {v}.", "The birthday of {n} is {v}."),
        ("When was {n} born?", "What is the birthday of {n}?"),
        "What are the birthdays of {n} and {m}?",
    ),
)
CODE_FACT = FactKind(
    _digits(4),
    ("ACCESS_CODE_{n} = {v}\n",),
    ("What is the value of ACCESS_CODE_{n}?",),
    "What are the values of ACCESS_CODE_{n} and ACCESS_CODE_{m}?",
)


def filler(rng: random.Random, templates: tuple[str, ...] = FILLERS) -> str:
    """One sentence, or piece of code, that holds no fact."""
    return rng.choice(templates).format(
        adj=rng.choice(ADJECTIVES),
        adj2=rng.choice(ADJECTIVES),
        adj3=rng.choice(ADJECTIVES),
        noun=rng.choice(NOUNS),
        noun2=rng.choice(NOUNS),
        place=rng.choice(PLACES),
        place2=rng.choice(PLACES),
        verb=rng.choice(VERBS),
        adv=rng.choice(ADVERBS),
        time=rng.choice(TIMES),
        name=rng.choice(NAMES),
        name2=rng.choice(NAMES),
        city=rng.choice(CITIES),
        small=rng.randrange(2, 99),
        small2=rng.randrange(2, 99),
        large=rng.randrange(10, 999),
    )
