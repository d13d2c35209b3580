"""Where what differs between two renderings stands in the tokens of one of them."""

from pathlib import Path

import pytest

from vkprefill.gguf.file import open_gguf
from vkprefill.text.rendered import Rendered
from vkprefill.text.tokenizer import Tokenizer

FILE = Path(__file__).parents[1] / "data" / "models" / "tiny-c-q4km.gguf"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(open_gguf(FILE).metadata)


@pytest.mark.parametrize(
    "parts, others, differing",
    [
        (["a b c"], ["a b c"], None),
        (["user\nHello"], ["user\nx"], "Hello"),
        ([1, "user\nHello", 2, "\n"], [1, "user\nx", 2, "\n"], "Hello"),
        ([1, "userHello", 2], [1, "user", 2], "Hello"),
        ([1, "Hello", 2, "end"], [1, "x", 2, "end"], "Hello"),
        ([1, "t", 2, 1, "u", 2], [1, "u", 2], "t"),
        ([1, "u"], [1, "u", 2, "more"], None),
        ([], [1], None),
        (["é字👍q"], ["é字👍x"], "q"),
        (["é字👍"], ["éx👍"], "字"),
        (["aaa"], ["aa"], "a"),
    ],
)
def test_differing(tokenizer, parts, others, differing):
    made = Rendered(parts, tokenizer)
    found = made.differing(others)
    assert made.token_ids == tokenizer.encode_parts(parts)
    if differing is not None:
        assert differing in tokenizer.decode(made.token_ids[slice(*found)])
        assert len(found) == 2 and found[1] - found[0] <= len(tokenizer.encode(differing)) + 2
    else:
        assert found is None


def test_more_than_one_place_is_all_between(tokenizer):
    made = Rendered([1, "one", 2, "two", 3], tokenizer)
    assert made.differing([1, "1", 2, "2", 3]) == (1, len(made.token_ids) - 1)
    assert made.differing(["other"]) == (0, len(made.token_ids))
    assert Rendered([1], tokenizer).differing([]) == (0, 1)


def test_shared_n(tokenizer):
    made = Rendered([1, "user\nHello", 2], tokenizer)
    for others in ([1, "user\nHi"], [1], [2], [1, "user\nHello", 2], [1, "user\nHello", 2, "x"], []):
        ids = tokenizer.encode_parts(others)
        common = next((n for n, (a, b) in enumerate(zip(made.token_ids, ids, strict=False)) if a != b), None)
        assert made.shared_n(others) == (min(len(made.token_ids), len(ids)) if common is None else common)
