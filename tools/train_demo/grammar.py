"""The language of the demo: plain filler sentences, facts about people, and questions about the facts."""

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
TIMES = [
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
]


def filler(rng: random.Random) -> str:
    """One sentence that holds no fact."""
    adj, noun, place, verb, adv, time = map(rng.choice, (ADJECTIVES, NOUNS, PLACES, VERBS, ADVERBS, TIMES))
    noun2, adj2, place2 = rng.choice(NOUNS), rng.choice(ADJECTIVES), rng.choice(PLACES)
    match rng.randrange(16):
        case 0:
            return f"The {adj} {noun} stood near the {place}."
        case 1:
            return f"{time} the {noun} was {adj} and the {noun2} was {adj2}."
        case 2:
            return f"Nobody knew why the {noun} {verb} the {adj} {noun2}."
        case 3:
            return f"{time} they {verb} the {noun} {adv}."
        case 4:
            return f"It was a {adj} day, and the road to the {place} was {adj2}."
        case 5:
            return f"The {noun} and the {noun2} were kept behind the {place}."
        case 6:
            return f"Some people said that the {place} was too {adj} for a {noun}."
        case 7:
            return f"We walked {adv} from the {place} to the {place2}."
        case 8:
            return f"There were {rng.randrange(2, 99)} chairs in the {adj} {place}."
        case 9:
            return f"{time} {rng.choice(NAMES)} {verb} the {adj} {noun}."
        case 10:
            return f"{rng.choice(NAMES)} and {rng.choice(NAMES)} talked {adv} about the {noun}."
        case 11:
            return f"The {noun} cost {rng.randrange(10, 999)} coins, which seemed {adj}."
        case 12:
            return f"If the {noun} is {adj}, the {noun2} will be {adj2}."
        case 13:
            return f"A {adj} wind came from the {place} and moved the {noun}."
        case 14:
            return f"{time} a train left for {rng.choice(CITIES)}."
        case _:
            return f"The {noun} of the {place} was {adj}, {adj2} and rather {rng.choice(ADJECTIVES)}."


def digits(rng: random.Random, count: int) -> str:
    return str(rng.randrange(1, 10)) + "".join(str(rng.randrange(10)) for _ in range(count - 1))


@dataclass(frozen=True)
class Kind:
    """A kind of fact. {n}, {m} are names, {v} the value; bars set it off, so that its tokens can be located."""

    value: Callable[[random.Random], str]
    facts: tuple[str, ...]
    questions: tuple[str, ...]
    pair_question: str
    value_starts_answer: bool = False  # several tokens, of which the first is the one to look up


KINDS = {
    "code": Kind(
        lambda rng: digits(rng, 4),
        ("The access code of {n} is| {v}|.", "{n} uses the access code| {v}|."),
        ("What is the access code of {n}?", "Tell me the access code of {n}."),
        "What are the access codes of {n} and {m}?",
        value_starts_answer=True,
    ),
    "room": Kind(
        lambda rng: digits(rng, 3),
        ("The room number of {n} is| {v}|.", "{n} works in room number| {v}|."),
        ("What is the room number of {n}?", "Tell me the room number of {n}."),
        "What are the room numbers of {n} and {m}?",
        value_starts_answer=True,
    ),
    "city": Kind(
        lambda rng: rng.choice(CITIES),
        ("{n} lives in the city of| {v}|.", "The home city of {n} is| {v}|."),
        ("What is the home city of {n}?", "In which city does {n} live?"),
        "What are the home cities of {n} and {m}?",
    ),
    "colour": Kind(
        lambda rng: rng.choice(COLOURS),
        ("The favourite colour of {n} is| {v}|.", "{n} likes the colour| {v}|."),
        ("What is the favourite colour of {n}?", "Which colour does {n} like?"),
        "What are the favourite colours of {n} and {m}?",
    ),
    "pet": Kind(
        lambda rng: rng.choice(PETS),
        ("{n} keeps a pet| {v}|.", "The pet of {n} is a| {v}|."),
        ("Which pet does {n} keep?", "What is the pet of {n}?"),
        "What are the pets of {n} and {m}?",
    ),
    "date": Kind(
        lambda rng: f"{rng.randrange(1, 29)} {rng.choice(MONTHS)}",
        ("{n} was born on| {v}|.", "The birthday of {n} is| {v}|."),
        ("When was {n} born?", "What is the birthday of {n}?"),
        "What are the birthdays of {n} and {m}?",
        value_starts_answer=True,
    ),
}

SMALL_TALK = [
    ("Hello!", "Hello! Ask me about the text."),
    ("Hi.", "Hello! Ask me about the text."),
    ("Who are you?", "I am a very small model."),
    ("Thank you.", "You are welcome."),
    ("What can you do?", "I can find facts in a long text."),
]
