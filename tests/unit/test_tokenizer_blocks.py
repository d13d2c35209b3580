"""Tokenizer: long text, encoded block by block."""

import random

import pytest
import tokenizers

from vkprefill.text.vocabulary import SPLIT_PATTERNS

# Characters of every class that the patterns tell apart, and of those that Unicode's tables have been changing.
CLASSES = [
    *(
        "a",
        "B",
        "z",
        "'s",
        "'RE ",
        "'",
        "1",
        "\u0663",
        "\u00b2",
        "\u2167",
        "\u00bd",
        "!",
        "(",
        "_",
        "-",
        "\u3001",
        "\u3002",
    ),
    *(
        " ",
        "  ",
        "\n",
        "\r\n",
        "\r",
        "\t",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\x0b",
        "\x1c",
        "\x85",
        "\u200b",
        "\ufeff",
        "\x00",
    ),
    *(
        "\u00e9",
        "e\u0301",
        "\u0301",
        "\u4e2d",
        "\u6587",
        "\u017f",
        "\u0e33",
        "\uff10",
        "\u0561",
        "\ud55c",
        "\u304b",
        "\u30fc",
    ),
    "\U0001f642",
]


@pytest.mark.parametrize("pattern", SPLIT_PATTERNS.values(), ids=SPLIT_PATTERNS)
def test_blocks_are_cut_where_pieces_end(tiny, monkeypatch, pattern):
    """Long text is encoded block by block; as short as blocks can be, the pieces are those of the whole text."""
    monkeypatch.setattr("vkprefill.text.tokenizer.BLOCK", 1)
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    rng, num_cuts = random.Random(5), 0
    for _ in range(20_000):
        text = "".join(rng.choice(CLASSES) for _ in range(rng.randrange(2, 12)))
        blocks = list(tiny._model.blocks(text))
        assert "".join(blocks) == text
        pieces = [piece for block in blocks for piece, _ in split.pre_tokenize_str(block)]
        assert pieces == [piece for piece, _ in split.pre_tokenize_str(text)], ascii(text)
        num_cuts += len(blocks) - 1
    assert num_cuts > 10_000


def test_long_text_as_in_one_block(tiny, monkeypatch):
    text = "The river, the bridge (12 of 34).\n  And so on: foo_bar(x);\t" * 5000
    whole = tiny.encode(text)
    assert len(list(tiny._model.blocks(text))) > 3
    monkeypatch.setattr("vkprefill.text.tokenizer.BLOCK", len(text))
    assert len(list(tiny._model.blocks(text))) == 1 and tiny.encode(text) == whole


def test_no_more_is_encoded_than_is_wanted(tiny, monkeypatch):
    monkeypatch.setattr("vkprefill.text.tokenizer.BLOCK", 8)
    end, encoded = tiny.special_tokens["<|im_end|>"], []
    encode = tiny._model.encode
    monkeypatch.setattr(tiny._model, "encode", lambda text, at_start: encoded.append(text) or encode(text, at_start))
    parts = ["a b c", end, "one two three four five six seven eight nine ten", end, "more"]
    each = list(tiny.encode_each(parts, most=10**6))
    assert [token_id for ids in each for token_id in ids] == tiny.encode_parts(parts)
    for most in range(len(tiny.encode_parts(parts))):
        encoded.clear()
        some = list(tiny.encode_each(parts, most=most))
        found = [token_id for ids in some for token_id in ids]
        assert len(found) > most and found == tiny.encode_parts(parts)[: len(found)]
        assert len(found) <= most + max(len(tiny.encode(block)) for block in (*encoded, " "))
    assert list(tiny.encode_each([], most=0)) == []
