"""Token sequences with known places of facts and answers: training batches and test prompts."""

import random
from dataclasses import dataclass

import numpy as np
from grammar import KINDS, NAMES, SMALL_TALK, filler
from tokenizers import Tokenizer
from vocabulary import END_OF_TEXT, TURN_END, TURN_START

CHUNK = 32  # tokens that a pruned prompt keeps or drops together
PADDING, TEXT, ANSWER, ANSWER_START = range(4)  # what the next token is, for the weights of the loss

Fact = tuple[str, str, str]  # kind, name, value


@dataclass(frozen=True)
class Span:
    """Token indices of a fact in its document; ends are exclusive."""

    start: int
    name: int  # last token of the name
    value: int
    value_end: int
    end: int


@dataclass(frozen=True)
class Row:
    """A query row whose attention is supervised, and where it should look; indices are inclusive."""

    query: int
    value_first: int
    value_last: int
    words_first: int  # the words before the value
    words_last: int
    document_end: int


@dataclass(frozen=True)
class Sample:
    token_ids: np.ndarray  # int64 [T + 1]
    next_kind: np.ndarray  # int64 [T]: PADDING ... ANSWER_START
    positions: np.ndarray  # int64 [T]
    rows: list[Row]
    last_names: list[tuple[int, int]]  # (row, token id of the last name mentioned there): the target of the probe


@dataclass(frozen=True)
class Batch:
    token_ids: np.ndarray  # int64 [B, T + 1]
    next_kind: np.ndarray  # int64 [B, T]
    positions: np.ndarray  # int64 [B, T]
    rows: np.ndarray  # int64 [N, 7]: sequence, then the fields of Row
    last_names: np.ndarray  # int64 [M, 3]: sequence, row, token id


@dataclass(frozen=True)
class Prompt:
    token_ids: list[int]  # up to and with "assistant\n"
    question: str
    answer: str
    answer_ids: list[int]  # with the end of the turn
    spans: list[Span]  # of the facts asked for
    num_facts: int


@dataclass(frozen=True)
class Document:
    """A document as it is fed: perhaps pruned, perhaps with gaps between its positions."""

    token_ids: list[int]
    positions: list[int]
    next_position: int
    fact_tokens: dict[int, tuple[int, int, int]]  # fact -> first token, value's first, value's last; -1 where pruned
    last_names: list[tuple[int, int]]


class SampleMaker:
    def __init__(self, tokenizer: Tokenizer, seed: int):
        self.tokenizer, self.rng = tokenizer, random.Random(seed)
        self.encoded: dict[str, list[int]] = {}
        turn_start, self.turn_end, self.end_of_text = map(tokenizer.token_to_id, (TURN_START, TURN_END, END_OF_TEXT))
        self.newline, self.space = self.encode("\n"), self.encode(" ")[0]
        self.user = [turn_start] + self.encode("user\n")
        self.assistant = [turn_start] + self.encode("assistant\n")

    def encode(self, text: str) -> list[int]:
        token_ids = self.encoded.get(text)
        if token_ids is None:
            token_ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            if len(self.encoded) < 400_000:
                self.encoded[text] = token_ids
        return token_ids

    def name_token(self, name: str) -> int:
        """The last token of a name inside a sentence."""
        return self.encode(" " + name)[-1]

    def facts(self, count: int, num_kinds: int | None = None) -> list[Fact]:
        rng = self.rng
        kinds = rng.sample(list(KINDS), num_kinds or rng.choice((1, 1, 2, 3, 6)))
        num_names = max(4, count * 2 // 3 if len(kinds) > 1 else count)
        names = rng.sample(NAMES, min(len(NAMES), num_names))
        pairs = [(kind, name) for kind in kinds for name in names]
        rng.shuffle(pairs)
        return [(kind, name, KINDS[kind].value(rng)) for kind, name in pairs[:count]]

    def document(self, num_tokens: int, facts: list[Fact]) -> tuple[list[int], dict[int, Span]]:
        """A text of about `num_tokens` tokens with all facts in random places, and the facts' spans."""
        rng, encode = self.rng, self.encode
        sentences = []  # of the facts, in three pieces: before, value, after
        for kind, name, value in facts:
            before, middle, after = rng.choice(KINDS[kind].facts).split("|")
            sentences.append((before.format(n=name), middle.format(v=value), after))
        room = num_tokens - sum(len(encode(" " + a)) + len(encode(b)) + 1 for a, b, _ in sentences)
        items = list(enumerate(sentences))
        while room > 0:
            sentence = filler(rng)
            items.append((-1, sentence))
            room -= len(encode(" " + sentence))
        rng.shuffle(items)

        token_ids, spans, line_start = [], {}, True
        for position, (fact, sentence) in enumerate(items):
            line_end = rng.random() < 0.15 or position == len(items) - 1
            lead, trail = "" if line_start else " ", "\n" if line_end else ""
            line_start = line_end
            if fact < 0:
                token_ids += encode(lead + sentence + trail)
                continue
            before, middle, after = sentence
            start = len(token_ids)
            token_ids += encode(lead + before)
            value = len(token_ids)
            name_ids = {encode(prefix + facts[fact][1])[-1] for prefix in ("", " ")}
            name = max((i for i in range(start, value) if token_ids[i] in name_ids), default=start)
            token_ids += encode(middle)
            value_end = len(token_ids)
            token_ids += encode(after + trail)
            value += token_ids[value] == self.space  # digits have their space as a token of its own
            spans[fact] = Span(start, name, value, value_end, len(token_ids))
        return token_ids, spans

    def question(self, facts: list[Fact], pair: bool = False) -> tuple[str, list[tuple[int, str]]]:
        """A question and the facts it asks for as (index, value); a pair only where two facts are of one kind."""
        rng = self.rng
        first = rng.randrange(len(facts))
        kind, name, value = facts[first]
        if pair:
            others = [i for i in range(len(facts)) if i != first and facts[i][0] == kind]
            if others:
                second = rng.choice(others)
                _, other_name, other_value = facts[second]
                text = KINDS[kind].pair_question.format(n=name, m=other_name)
                return text, [(first, value), (second, other_value)]
        return rng.choice(KINDS[kind].questions).format(n=name), [(first, value)]

    def answer(self, asked: list[tuple[int, str]]) -> list[tuple[int, int, int, int]]:
        """(token id, fact or -1, index in its value, tokens of the value) for each token of the answer."""
        tokens = []
        for n, (fact, value) in enumerate(asked):
            if n:
                tokens += [(token, -1, 0, 0) for token in self.encode(" and")]
            value_ids = self.encode(" " + value if n else value)
            space = value_ids[0] == self.space
            tokens += [(t, fact, max(0, i - space), len(value_ids) - space) for i, t in enumerate(value_ids)]
        return [*tokens, (self.turn_end, -1, 0, 0)]

    def pruned_document(self, num_tokens: int, facts: list[Fact], asked: set[int]) -> Document:
        """A longer document of which only some chunks are left, at their places: those asked for, and others."""
        rng, offset = self.rng, len(self.user)
        full_size = int(num_tokens * rng.uniform(1.3, 4))
        extra = self.facts(int(full_size * rng.uniform(0.02, 0.3) / 13) + 1)
        known = {(kind, name) for kind, name, _ in facts}
        all_facts = facts + [fact for fact in extra if fact[:2] not in known]
        token_ids, spans = self.document(full_size, all_facts)
        full = self.user + token_ids

        needed = {0}
        for fact in asked:
            span = spans[fact]
            needed |= set(range((span.start + offset) // CHUNK, (span.end - 1 + offset) // CHUNK + 1))
        others = [c for c in range(-(-len(full) // CHUNK)) if c not in needed]
        rng.shuffle(others)
        chunks = sorted(needed | set(others[: max(0, num_tokens // CHUNK - len(needed))]))
        kept = [i for c in chunks for i in range(c * CHUNK, min(len(full), (c + 1) * CHUNK))]
        place = {position: i for i, position in enumerate(kept)}
        return Document(
            [full[i] for i in kept],
            kept,
            len(full),
            {
                fact: tuple(place.get(i + offset, -1) for i in (span.start, span.value, span.value_end - 1))
                for fact, span in spans.items()
            },
            [
                (place[i + offset], self.name_token(all_facts[fact][1]))
                for fact, span in spans.items()
                for i in range(span.name, span.end)
                if i + offset in place
            ],
        )

    def whole_document(self, num_tokens: int, facts: list[Fact]) -> Document:
        """A whole document; in two of five the positions have gaps between chunks, up to about 8,000."""
        rng, offset = self.rng, len(self.user)
        token_ids, spans = self.document(num_tokens, facts)
        token_ids = self.user + token_ids
        positions = list(range(len(token_ids)))
        if rng.random() < 0.4:
            room = rng.randrange(0, 7000)
            gaps = sorted(rng.randrange(0, room + 1) // CHUNK * CHUNK for _ in range(len(token_ids) // CHUNK + 1))
            gaps[0] = 0
            positions = [p + gaps[p // CHUNK] for p in positions]
        return Document(
            token_ids,
            positions,
            positions[-1] + 1,
            {
                fact: (span.start + offset, span.value + offset, span.value_end - 1 + offset)
                for fact, span in spans.items()
            },
            [
                (i + offset, self.name_token(facts[fact][1]))
                for fact, span in spans.items()
                for i in range(span.name, span.end)
            ],
        )

    def sample(self, length: int, pruned_share: float = 0.35) -> Sample:
        """A document and several questions with their answers, `length` + 1 tokens."""
        rng = self.rng
        small_talk, with_small_talk = rng.choice(SMALL_TALK), rng.random() < 0.01
        num_questions = min(20, max(2, int(length * rng.uniform(0.25, 0.6) / 27)))
        room = max(40, length - (num_questions * 27 + 12))
        facts = self.facts(max(3, int(room * rng.uniform(0.05, 0.5) / 13)))
        questions, seen = [], set()
        for _ in range(num_questions):
            for _ in range(4):  # tries to find one that was not asked before
                question = self.question(facts, rng.random() < 0.15)
                if not any(fact in seen for fact, _ in question[1]):
                    break
            seen |= {fact for fact, _ in question[1]}
            questions.append(question)

        pruned = rng.random() < pruned_share
        doc = self.pruned_document(room, facts, seen) if pruned else self.whole_document(room, facts)
        token_ids, positions = list(doc.token_ids), list(doc.positions)
        kinds, document_end, next_position = [TEXT] * len(token_ids), len(token_ids), doc.next_position
        rows, last_names = [], list(doc.last_names)

        def add(tokens: list[int], kind: int = TEXT):
            nonlocal next_position
            token_ids.extend(tokens)
            kinds.extend([kind] * len(tokens))
            positions.extend(range(next_position, next_position + len(tokens)))
            next_position += len(tokens)

        if with_small_talk:
            add([*self.encode(small_talk[0]), self.turn_end, *self.newline, *self.assistant])
            add([*self.encode(small_talk[1]), self.turn_end, *self.newline])
        for n, (text, asked) in enumerate(questions):
            if n or with_small_talk:
                add(self.user)
            question_start = len(token_ids)
            add([*self.encode(text), self.turn_end, *self.newline, *self.assistant])
            first = asked[0][0]
            start, value, value_last = doc.fact_tokens[first]
            if len(asked) == 1 and min(doc.fact_tokens[first]) >= 0:
                # from the name in the question on, every row may look for the fact
                name = self.name_token(facts[first][1])
                name_at = max(i for i in range(question_start, len(token_ids)) if token_ids[i] == name)
                last = value if KINDS[facts[first][0]].value_starts_answer else value_last
                for i in range(name_at, len(token_ids) - 1):
                    rows.append(Row(i, value, last, start, value - 1, document_end))
                last_names += [(i, name) for i in range(name_at, len(token_ids))]
            for token, fact, index, count in self.answer(asked):
                if fact >= 0 and min(doc.fact_tokens[fact]) >= 0:
                    start, value, value_last = doc.fact_tokens[fact]
                    same = value_last - value + 1 == count  # the value is cut into tokens as in the document
                    target = (value + index, value + index) if same else (value, value_last)
                    rows.append(Row(len(token_ids) - 1, *target, start, value - 1, document_end))
                add([token], ANSWER_START if fact >= 0 and index == 0 else ANSWER)
            add(self.newline)

        count = min(len(token_ids), length + 1)
        padding = length + 1 - count
        return Sample(
            np.array(token_ids[:count] + [self.end_of_text] * padding, np.int64),
            np.array(kinds[1:count] + [PADDING] * padding, np.int64),
            np.array((positions[:count] + [positions[count - 1] + 1] * padding)[:length], np.int64),
            [row for row in rows if row.query < count - 1],
            [entry for entry in last_names if entry[0] < count - 1],
        )

    def batch(self, num_sequences: int, length: int) -> Batch:
        samples = [self.sample(length) for _ in range(num_sequences)]
        rows = [(b, *vars(row).values()) for b, sample in enumerate(samples) for row in sample.rows]
        last_names = [(b, *entry) for b, sample in enumerate(samples) for entry in sample.last_names]
        return Batch(
            np.stack([sample.token_ids for sample in samples]),
            np.stack([sample.next_kind for sample in samples]),
            np.stack([sample.positions for sample in samples]),
            np.array(rows, np.int64).reshape(-1, 7),
            np.array(last_names, np.int64).reshape(-1, 3),
        )

    def prompt(self, num_tokens: int, pair: bool = False) -> Prompt:
        """A test prompt of about `num_tokens` tokens: six kinds of facts, one for every 80 tokens, and one question."""
        num_facts = max(8 if pair else 6, num_tokens // 80)
        facts = self.facts(num_facts, 6)
        question, asked = self.question(facts, pair)
        tail = [*self.encode(question), self.turn_end, *self.newline, *self.assistant]
        document, spans = self.document(num_tokens - len(tail) - len(self.user) - 6, facts)
        offset = len(self.user)
        return Prompt(
            self.user + document + tail,
            question,
            " and ".join(value for _, value in asked),
            [token for token, *_ in self.answer(asked)],
            [Span(*(i + offset for i in vars(spans[fact]).values())) for fact, _ in asked],
            len(facts),
        )
